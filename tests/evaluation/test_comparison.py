"""The order of requests, and which modes are left out."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from hf_lossy_assist.errors import LossyValueError
from hf_lossy_assist.evaluation.comparison import rotated, run_comparison, texts_of, warm_up
from hf_lossy_assist.evaluation.modes import STOCK, TARGET_ALONE, DecodingMode
from hf_lossy_assist.evaluation.requests import Instruments, PromptBatch
from tests.tiny_models import prompt

MODES = [
    DecodingMode(TARGET_ALONE),
    DecodingMode.stock(3),
    DecodingMode("lossless", "lossless", gamma=3),
    DecodingMode("topk", "topk", {"k": 3}, 3),
]


def batches(*sizes):
    made, first = [], 0
    for size in sizes:
        ids = torch.cat([prompt(6, first + i) for i in range(size)])
        made.append(PromptBatch(ids, torch.ones_like(ids), first))
        first += size
    return made


def test_all_modes_answer_a_batch_before_the_next_and_go_first_in_turn(models):
    field, put = MODES, batches(1, 1, 1, 1)
    played, _ = run_comparison(models, field, put, 6, repeats=2)
    assert [r.place for r in played] == list(range(3 * 4 * 4))
    groups = [played[i : i + 4] for i in range(0, len(played), 4)]
    for i, group in enumerate(groups):
        assert {(r.repeat, r.batch) for r in group} == {divmod(i, 4)}
        assert {r.label for r in group} == {c.label for c in field}
    assert Counter(group[0].label for group in groups) == {c.label: 3 for c in field}
    assert [r.is_metered for r in played] == [False] * 32 + [True] * 16
    for r in played:
        assert (r.counts is None) is (r.label in (TARGET_ALONE, STOCK))
        assert (r.split is None) is not r.is_metered
        assert r.tokens == 6


def test_statistics_and_energy_are_those_of_the_request(models):
    used = iter(range(1000))
    instruments = Instruments(energy=lambda: 2.0 * next(used))
    played, responses = run_comparison(models, MODES[2:3], batches(1), 6, repeats=1, instruments=instruments)
    assert len(played) == 2
    (response,) = responses["lossless"]
    for record in played:
        assert record.joules == 2.0
        assert record.counts.rounds == response.stats.rounds
        assert record.counts.target_calls == response.stats.target_calls


def test_rotation():
    assert [rotated("abc", by) for by in range(4)] == [list("abc"), list("bca"), list("cab"), list("abc")]


def test_who_can_t_is_left_out_or_an_error(models):
    impossible = DecodingMode("too much", "topk", {"k": -1}, 3)
    (put,) = batches(1)
    able, notes = warm_up(models, [*MODES, impossible], put, 6, strict=False)
    assert able == MODES
    (note,) = notes
    assert note.startswith("left out, too much: `k` of the rule 'topk'")
    with pytest.raises(LossyValueError, match=r"`modes` has a mode that can't run here, too much: `k`"):
        warm_up(models, [*MODES, impossible], put, 6, strict=True)
    with pytest.raises(LossyValueError, match="two modes that can run here"):
        warm_up(models, [MODES[0], impossible], put, 6, strict=False)


def test_stock_refuses_a_batch(models):
    (put,) = batches(2)
    field = [MODES[0], MODES[1], DecodingMode("again")]
    able, notes = warm_up(models, field, put, 6, strict=False)
    assert able == [field[0], field[2]]
    assert notes == ["left out, stock assisted: assisted generate is only supported for batch_size = 1"]


def test_what_is_said_is_that_of_the_first_repeat(models):
    written = []
    records, responses = run_comparison(models, MODES[:3], batches(1, 1), 6, repeats=1, write=written.append)
    assert written == records
    assert [len(responses[mode.label]) for mode in MODES[:3]] == [2, 2, 2]
    plain, *others = (texts_of(answers) for answers in responses.values())
    assert [len(text) for text in plain] == [6, 6]
    assert others == [plain, plain]
