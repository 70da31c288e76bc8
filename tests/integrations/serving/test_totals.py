"""What a server says of all its requests together."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from hf_lossy_assist.core.statistics import LossyStats
from hf_lossy_assist.inspection import TokenRecord
from hf_lossy_assist.integrations.serving.totals import Totals

STATS = LossyStats(
    rounds=4,
    drafted=20,
    accepted=10,
    accepted_lossy=3,
    corrected=3,
    bonus=1,
    target_calls=4,
    draft_calls=20,
    accepted_by={"topk": 10},
    seconds={"total": 2.0, "drafting": 1.0, "verifying": 0.5},
    trace=("accepted",) * 14,
    records=(TokenRecord(5, "accepted", 0),) * 14,
)


@pytest.fixture
def totals() -> Totals:
    totals = Totals()
    for model, stats in (("a", STATS), ("b", STATS), ("a", replace(STATS, accepted_by={"typical": 10}))):
        totals.add(model, stats)
    return totals


def test_requests_are_added_up_by_model(totals: Totals):
    found = totals.to_dict()["a"]
    assert found["requests"] == 2
    assert (found["total"]["tokens"], found["last"]["tokens"]) == (28, 14)
    assert found["total"]["tokens_per_round"] == found["last"]["tokens_per_round"] == 3.5
    assert found["total"]["accepted_by"] == {"topk": 10, "typical": 10}
    assert totals.to_dict()["b"]["requests"] == 1


def test_what_grows_with_every_token_is_not_kept(totals: Totals):
    total = totals._total["a"]
    assert not total.trace
    assert not total.records
    assert not total.rows


def test_prometheus_can_read_them(totals: Totals):
    registry = CollectorRegistry()
    registry.register(totals)
    families = text_string_to_metric_families(generate_latest(registry).decode())
    samples = [sample for family in families for sample in family.samples]
    found = {(x.name, x.labels.pop("model"), *x.labels.values()): x.value for x in samples}
    assert found["lossy_assist_requests_total", "a"] == 2
    assert found["lossy_assist_rounds_total", "a"] == 8
    fates = {"accepted": 14, "accepted_lossy": 6, "corrected": 6, "bonus": 2}
    assert {fate: found["lossy_assist_tokens_total", "a", fate] for fate in fates} == fates
    assert found["lossy_assist_accepted_tokens_total", "a", "typical"] == 10
    assert found["lossy_assist_forward_passes_total", "b", "draft"] == 20
    assert found["lossy_assist_seconds_total", "a", "verifying"] == 1.0
    assert found["lossy_assist_seconds_total", "a", "other"] == 1.0
    assert ("lossy_assist_seconds_total", "a", "total") not in found
