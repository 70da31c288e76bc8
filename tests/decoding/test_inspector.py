"""Records hold the models' own scores of a token, and the quantities by which the rule decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from hf_lossy_assist import LossyStats, LossyVerification
from hf_lossy_assist.acceptors import REGISTRY, GreedyRule
from hf_lossy_assist.core.statistics import TokenRecord
from tests.acceptors.fixtures import verifier_head
from tests.acceptors.table import ROWS, Row, row_id
from tests.nightly import spread
from tests.tiny_models import noisy_copy, padded, prompt, tiny

TARGET = tiny()
DRAFT = noisy_copy(TARGET, 0.03)
SPRINTER = replace(
    ROWS[0], mode="sprinter", config={"max_draft": 5}, head=lambda *pair: verifier_head(*pair, scale=3.0)
)
TEMPERATURE = 0.7
ONE, BATCH = {"input_ids": prompt()}, padded()
TREE = {"tree": {"depth": 3, "top_k": 2, "nodes": 6}}


def run(row: Row, inputs: Mapping[str, Tensor], new: int = 24, *, do_sample=False, inspect=True, **config: Any):
    """Decode; where tokens are drawn, at a temperature."""
    warmth = {"temperature": TEMPERATURE, "top_k": 0} if do_sample else {}
    return TARGET.generate(
        **inputs, assistant_model=DRAFT, num_assistant_tokens=4, max_new_tokens=new, eos_token_id=None,
        do_sample=do_sample, **warmth, return_dict_in_generate=True,
        **row.keywords(TARGET, DRAFT, seed=2, inspect=inspect, **config),
    )  # fmt: skip


@torch.no_grad()
def laws(model: Any, text: Tensor, do_sample: bool) -> Tensor:
    """Return the law after each token of one text, by one forward without a cache."""
    return (model(text[None]).logits[0].double() / (TEMPERATURE if do_sample else 1)).softmax(-1)


def texts_of(output: Any, inputs: Mapping[str, Tensor]) -> Iterator[tuple[Tensor, int, LossyStats]]:
    """Yield each row's text without padding, how long its prompt is, and its statistics."""
    width = inputs["input_ids"].shape[1]
    for i, (sequence, stats) in enumerate(zip(output.sequences, output.lossy_stats.rows, strict=True)):
        pad = width - int(inputs["attention_mask"][i].sum()) if "attention_mask" in inputs else 0
        yield sequence[pad : width + stats.tokens], width - pad, stats


def close(value: float) -> Any:
    return pytest.approx(value, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize(
    ("row", "inputs", "do_sample", "config"),
    [
        (ROWS[2], ONE, False, {}),
        (ROWS[2], BATCH, False, {}),
        (ROWS[1], BATCH, True, {}),
        (ROWS[2], ONE, False, TREE),
        (ROWS[2], BATCH, True, TREE),
        (SPRINTER, ONE, False, {}),
        (SPRINTER, BATCH, True, {}),
    ],
    ids=["greedy", "batch", "drawn batch", "tree", "drawn trees", "ahead", "drawn batch ahead"],
)
def test_probabilities_are_those_of_a_forward_over_the_whole_text(row, inputs, do_sample, config):
    fates = set()
    for text, start, stats in texts_of(run(row, inputs, do_sample=do_sample, **config), inputs):
        assert [record.token for record in stats.records] == text[start:].tolist()
        p, q = (laws(model, text, do_sample) for model in (TARGET, DRAFT))
        for at, (record, kind) in enumerate(zip(stats.records, stats.trace, strict=True), start - 1):
            said = record.scores
            fates.add(record.fate)
            assert record.fate == kind or (record.fate, kind) == ("unverified", "accepted_lossy")
            assert said.p == (None if record.fate == "unverified" else close(p[at, record.token].item()))
            assert (said.q is None) == (bool(config) or record.fate == "bonus")
            if said.q is not None:
                assert said.q == close(q[at, record.token].item())
            if record.fate == "unverified":
                assert not said.likeliest
                continue
            best = p[at].topk(5)
            assert [chance for _, chance in said.likeliest] == [close(x) for x in best.values.tolist()]
            assert [token for token, _ in said.likeliest] == best.indices.tolist()
            assert (said.replaced is not None) == (record.fate == "corrected" and not config)
            if said.replaced is not None:
                token, p_x, q_x = said.replaced
                assert (p_x, q_x) == (close(p[at, token].item()), close(q[at, token].item()))
    assert {"accepted", "unverified" if row is SPRINTER else "corrected"} <= fates


def test_rounds_are_numbered_and_rules_credited():
    stats = run(ROWS[2], ONE).lossy_stats
    rounds = [record.round for record in stats.records]
    assert rounds == sorted(rounds)
    assert {*rounds} == {*range(stats.rounds)}
    for number in range(stats.rounds):
        *kept, last = [record for record in stats.records if record.round == number]
        assert all(record.rule == "topk" for record in kept)
        assert last.rule is None or number == stats.rounds - 1


@spread(row=[*{row.mode: row for row in ROWS}.values(), SPRINTER], do_sample=[False, True])
def test_being_inspected_changes_nothing(row: Row, do_sample: bool):
    seen, unseen = (run(row, ONE, 12, do_sample=do_sample, inspect=inspect) for inspect in (True, False))
    assert torch.equal(seen.sequences, unseen.sequences)
    assert seen.lossy_stats.trace == unseen.lossy_stats.trace
    assert all(record.scores is None for record in unseen.lossy_stats.records)


def _ratio(x: Mapping[str, float], p: float, top: float, c: Mapping[str, Any]) -> bool:
    return x["u"] <= x["p/q"] if "u" in x else p == top


# From what a rule compared, p(x), max p and its settings to whether it keeps x.
KEEPS: Mapping[str, Callable[[Mapping[str, float], float, float, Mapping[str, Any]], bool]] = {
    "lossless": _ratio,
    "ears": lambda x, p, top, c: x["p/q"] >= x["threshold"] if "threshold" in x else p == top,
    "topk": lambda x, p, top, c: x["rank"] <= c["k"] and x["nats below the best"] <= c["tolerance"],
    "typical": lambda x, p, top, c: p > x["threshold"],
    "relaxed": lambda x, p, top, c: x["rank"] <= c["top_n"] and x["max p - p"] <= c["delta"],
    "ensemble": lambda x, p, top, c: x["u"] <= x["1 - w + w·p/q"] if "u" in x else x["mixture"] >= x["mixture's best"],
    "judge": lambda x, p, top, c: x["P(important)"] < c["threshold"] or _ratio(x, p, top, c),
    "thresholds": lambda x, p, top, c: p >= x["threshold"] or (x["u"] <= x["p/t_acc"] if "u" in x else p == top),
    "near_top": lambda x, p, top, c: x["p / max p"] >= 1 - c["alpha"],
    "lenience": lambda x, p, top, c: x["u"] <= x["p/ℓq"] if "u" in x else x["p / max p"] >= c["factor"],
    "fsd": lambda x, p, top, c: x[f"{c['divergence'].upper()}(p, q)"] <= c["threshold"],
    "cactus": lambda x, p, top, c: x["u"] <= x["h/q"] if "u" in x else p == top,
    "fly": lambda x, p, top, c: x["entropy"] >= x["threshold"],
}


# With `strict_above`, the lossless rule decides some of the tokens.
DECIDING = [row for row in ROWS if row.mode in KEEPS and "strict_above" not in row.config]


def drafted(stats: LossyStats) -> Iterator[tuple[TokenRecord, float, bool]]:
    """Yield every drafted token that was decided with its p, and whether it was kept."""
    for record in stats.records:
        if record.fate in ("accepted", "accepted_lossy"):
            yield record, record.scores.p, True
        elif record.fate == "corrected":
            yield record, record.scores.replaced[1], False


@spread(row=DECIDING, do_sample=[True, False])
def test_what_a_rule_compares_is_what_it_decides_by(row: Row, do_sample: bool):
    decided = list(drafted(run(row, BATCH, do_sample=do_sample).lossy_stats))
    assert len(decided) > 20
    for record, p, kept in decided:
        said = record.scores
        holds = KEEPS[row.mode](said.quantities, p, said.likeliest[0][1], row.config)
        if do_sample and issubclass(REGISTRY[row.mode], GreedyRule):
            holds = holds or _ratio(said.quantities, p, p, row.config)
        # What the lossless rule keeps, some rules keep whatever they compare.
        assert holds == kept or (kept and record.fate == "accepted" and row.mode in ("near_top", "fly")), record


def test_rules_with_other_evidence():
    """Heads that agree, margins, and regret that adds up."""
    by_rule = {row_id(row): row for row in ROWS}
    naive = run(by_rule["dropmatch-naive"], BATCH).lossy_stats
    assert all((record.scores.quantities["agreeing heads"] > 0) == kept for record, _, kept in drafted(naive))
    js = run(by_rule["dropmatch-js"], BATCH).lossy_stats
    for record, _, kept in drafted(js):
        near = record.scores.quantities["JS of the draft"] <= record.scores.quantities["largest JS of a head"]
        assert kept or not near
    for record, _, kept in drafted(run(by_rule["margin"], BATCH).lossy_stats):
        assert kept == (record.scores.quantities["z1 - z2"] < 0.3) or record.fate in ("accepted", "corrected")
    total = 0.0
    for record, _, kept in drafted(run(by_rule["regret"], ONE).lossy_stats):
        values = record.scores.quantities
        assert values["regret so far"] == close(total + values["regret"])
        total += values["regret"] * kept


def test_lists_name_the_rule_of_each_quantity():
    both = replace(ROWS[2], mode=["topk", "typical"], config={"topk": {"k": 2}})
    stats = run(both, ONE).lossy_stats
    assert {*stats.records[0].scores.quantities} == {"topk: rank", "topk: nats below the best", "typical: threshold"}


def test_sprinter_gives_its_head_s_probability():
    for record in run(SPRINTER, ONE).lossy_stats.records:
        score = record.scores.quantities["P(acceptable)"]
        assert score > 0.5 if record.fate == "unverified" else 0 <= score <= 1


def test_the_stock_loop_is_inspected_too():
    with LossyVerification("topk", TARGET, assistant_model=DRAFT, k=3, inspect=True) as hook:
        out = TARGET.generate(
            **ONE, assistant_model=DRAFT, logits_processor=[hook], max_new_tokens=12, eos_token_id=None
        )
    records = hook.stats.records
    assert [record.token for record in records] == out[0, ONE["input_ids"].shape[1] :].tolist()
    p = laws(TARGET, out[0], False)
    for at, record in enumerate(records, ONE["input_ids"].shape[1] - 1):
        assert record.scores.p == close(p[at, record.token].item())


def test_every_rule_has_a_quantity():
    assert {row.mode for row in (*ROWS, SPRINTER)} == {*REGISTRY}
    for row in (*ROWS, SPRINTER):
        for record, _, _ in drafted(run(row, ONE, do_sample=row.mode == "ears").lossy_stats):
            assert record.scores.quantities
