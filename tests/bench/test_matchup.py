"""The order of requests, and who is left out."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from hf_lossy_assist.bench.contenders import Models, StockAssisted, TargetAlone, WithRule
from hf_lossy_assist.bench.matchup import play, rotated, warm_up
from hf_lossy_assist.bench.trials import Batch, Instruments, Workload
from hf_lossy_assist.errors import LossyValueError
from tests.models import noisy_copy, prompt, tiny

FIELD = [TargetAlone(), StockAssisted(gamma=3), WithRule("lossless", gamma=3), WithRule("topk", "topk", {"k": 3}, 3)]


@pytest.fixture(scope="module")
def models():
    target = tiny()
    target.generation_config.eos_token_id = None
    return Models(target, noisy_copy(target, 0.02))


def batches(*sizes):
    made, first = [], 0
    for size in sizes:
        ids = torch.cat([prompt(6, first + i) for i in range(size)])
        made.append(Batch(ids, torch.ones_like(ids), first))
        first += size
    return made


def test_everybody_answers_a_batch_before_the_next_and_goes_first_in_turn(models):
    field, put = FIELD, batches(1, 1, 1, 1)
    played = [request for request, _ in play(models, field, put, Workload(6), repeats=2)]
    assert [r.place for r in played] == list(range(3 * 4 * 4))
    groups = [played[i : i + 4] for i in range(0, len(played), 4)]
    for i, group in enumerate(groups):
        assert {(r.repeat, r.batch) for r in group} == {divmod(i, 4)}
        assert {r.label for r in group} == {c.label for c in field}
    assert Counter(group[0].label for group in groups) == {c.label: 3 for c in field}
    assert [r.is_metered for r in played] == [False] * 32 + [True] * 16
    for r in played:
        assert (r.counts is None) is (r.label in ("target alone", "stock assisted"))
        assert (r.split is None) is not r.is_metered
        assert r.tokens == 6


def test_statistics_and_energy_are_those_of_the_request(models):
    used = iter(range(1000))
    instruments = Instruments(energy=lambda: 2.0 * next(used))
    played = list(play(models, FIELD[2:3], batches(1), Workload(6), repeats=1, instruments=instruments))
    assert len(played) == 2
    for request, trial in played:
        assert request.joules == 2.0
        assert request.counts.rounds == trial.stats.rounds
        assert request.counts.target_calls == trial.stats.target_calls


def test_rotation():
    assert [rotated("abc", by) for by in range(4)] == [list("abc"), list("bca"), list("cab"), list("abc")]


def test_who_can_t_is_left_out_or_an_error(models):
    impossible = WithRule("too much", "topk", {"k": -1}, 3)
    (put,) = batches(1)
    able, notes = warm_up(models, [*FIELD, impossible], put, Workload(6), strict=False)
    assert able == FIELD
    (note,) = notes
    assert note.startswith("left out, too much: `k` of the rule 'topk'")
    with pytest.raises(LossyValueError, match=r"`--modes` has one that can't run here, too much: `k`"):
        warm_up(models, [*FIELD, impossible], put, Workload(6), strict=True)
    with pytest.raises(LossyValueError, match="nobody to compare"):
        warm_up(models, [TargetAlone(), impossible], put, Workload(6), strict=False)


def test_stock_refuses_a_batch(models):
    (put,) = batches(2)
    field = [TargetAlone(), StockAssisted(), TargetAlone("again")]
    able, notes = warm_up(models, field, put, Workload(6), strict=False)
    assert able == [field[0], field[2]]
    assert notes == ["left out, stock assisted: assisted generate is only supported for batch_size = 1"]
