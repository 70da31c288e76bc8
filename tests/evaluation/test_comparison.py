"""The order of requests, which modes are left out, and sums over requests, worked out by hand."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
import torch

from hf_lossy_assist.errors import LossyValueError
from hf_lossy_assist.evaluation import comparison
from hf_lossy_assist.evaluation.comparison import (
    RequestRecord,
    RunCounts,
    Spread,
    first_answers,
    rotated,
    run_comparison,
    summarise,
    warm_up,
)
from hf_lossy_assist.evaluation.modes import STOCK, TARGET_ALONE, DecodingMode
from hf_lossy_assist.evaluation.requests import Instruments, PromptBatch, TimeSplit, run_request
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
    played = run_comparison(models, field, put, 6, repeats=2)
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
    played = run_comparison(models, MODES[2:3], batches(1), 6, repeats=1, instruments=instruments)
    stats = run_request(models, MODES[2], batches(1)[0], 6).stats
    assert len(played) == 2
    for record in played:
        assert record.joules == 2.0
        assert record.counts.rounds == stats.rounds
        assert record.counts.target_calls == stats.target_calls


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
    records = run_comparison(models, MODES[:3], batches(1, 1), 6, repeats=1, write=written.append)
    assert written == records
    plain, *others = ([r.rows for r in first_answers(records, mode.label)] for mode in MODES[:3])
    assert [len(row) for rows in plain for row in rows] == [6, 6]
    assert others == [plain, plain]


ALONE, BY_STOCK, OURS = DecodingMode(), DecodingMode.stock(5), DecodingMode("lossless", "lossless", gamma=5)


TEXTS = {ALONE.label: [[1, 2], [3]], BY_STOCK.label: [[1, 2], [3]], OURS.label: [[1, 2], [4]]}


def timed(label, repeat, batch, seconds, tokens, **more):
    said = TEXTS[label][batch : batch + 1] if repeat == 0 else ()
    return RequestRecord(0, repeat, batch, label, seconds, tokens, rows=said, **more)


def metered(label, tokens, draft_calls, target_calls, deciding=None, counts=None, seconds=1.0):
    split = TimeSplit(
        drafting=0.01 * draft_calls, verifying=0.1 * target_calls, deciding=deciding,
        rest=seconds - 0.01 * draft_calls - 0.1 * target_calls - (deciding or 0), draft_calls=draft_calls,
        target_calls=target_calls, draft_call=0.01 if draft_calls else None, target_call=0.1, first_token=0.25,
    )  # fmt: skip
    return RequestRecord(0, 2, 0, label, seconds, tokens, counts, None, 2**20, split)


def requests():
    return [
        *(timed(ALONE.label, r, b, 1.0, 10) for r in range(2) for b in range(2)),
        *(timed(BY_STOCK.label, r, b, 0.5, 10, joules=3.0) for r in range(2) for b in range(2)),
        *(timed(OURS.label, r, b, (0.2, 0.4)[r], 10) for r in range(2) for b in range(2)),
        metered(ALONE.label, 10, 0, 10),
        metered(ALONE.label, 10, 0, 10),
        metered(BY_STOCK.label, 10, 10, 2, seconds=0.6),
        metered(BY_STOCK.label, 10, 20, 4, seconds=0.9),
        metered(OURS.label, 10, 10, 2, 0.02, RunCounts(2, 10, 8, 10, 2, (0.8,)), seconds=0.4),
        metered(OURS.label, 10, 20, 4, 0.04, RunCounts(4, 20, 6, 20, 4, (0.3,)), seconds=0.8),
    ]


def test_speeds_ratios_and_latencies():
    alone, stock, ours = summarise([ALONE, BY_STOCK, OURS], requests())
    assert alone.tokens_per_second == Spread(10.0, 10.0, 10.0)
    assert ours.tokens_per_second == Spread(pytest.approx(37.5), pytest.approx(25.0), pytest.approx(50.0))
    # A request takes the median of its repeats: 0.3 s, beside 1 and 0.5.
    for label, expected in {ALONE.label: 1 / 0.3, BY_STOCK.label: 0.5 / 0.3, OURS.label: 1.0}.items():
        assert ours.ratios[label] == pytest.approx((expected,) * 3), "both requests are alike"
    assert ours.latencies == pytest.approx((0.3, 0.4, 0.4))
    assert [row.same_text for row in (alone, stock, ours)] == [1.0, 1.0, 0.5]
    assert (ours.requests, ours.tokens, ours.first_token) == (2, 20, 0.25)
    assert (alone.joules_per_token, stock.joules_per_token) == (None, pytest.approx(0.3))
    assert ours.config == {"lossy_mode": "lossless", "lossy_config": {}, "num_assistant_tokens": 5}


def test_ratios_have_the_interval_of_a_bootstrap_over_the_requests():
    """40 requests of 10 tokens, which one mode answers in 1 s and the other in 1 or 3: as numpy's bootstrap says."""
    seconds = np.where(np.arange(40) % 4, 1.0, 3.0)
    records = [timed(ALONE.label, 0, b, s, 10) for b, s in enumerate(seconds)]
    records += [timed(OURS.label, 0, b, 1.0, 10) for b in range(40)]
    ours = summarise([ALONE, OURS], records)[1]
    drawn = np.random.default_rng(1).choice(seconds, (20_000, 40)).mean(1)
    assert ours.ratios[ALONE.label] == pytest.approx((1.5, *np.quantile(drawn, (0.025, 0.975))), abs=0.03)


def test_only_the_first_batches_are_metered(models, monkeypatch):
    monkeypatch.setattr(comparison, "METERED", 1)
    records = run_comparison(models, MODES[:2], batches(1, 1), 4, repeats=1)
    assert [(r.repeat, r.batch) for r in records] == [(0, 0), (0, 0), (0, 1), (0, 1), (1, 0), (1, 0)]


def test_rounds_of_stock_are_inferred_and_ours_are_counted():
    alone, stock, ours = summarise([ALONE, BY_STOCK, OURS], requests())
    assert (alone.tokens_per_round, alone.mean_accepted, alone.draft_calls_per_round) == (1.0, None, 0)
    for row in (stock, ours):
        assert row.tokens_per_round == pytest.approx(20 / 6)
        assert row.mean_accepted == pytest.approx(14 / 6)
        assert row.draft_calls_per_round == 5
        assert (row.acceptance_rates[0], row.acceptance_rates[-1]) == (pytest.approx(0.3), pytest.approx(0.8))
        assert row.acceptance_rates[3] == pytest.approx(0.55)
    assert (ours.draft_call, ours.target_call, alone.draft_call) == (0.01, 0.1, None)


def test_time_per_round():
    alone, stock, ours = summarise([ALONE, BY_STOCK, OURS], requests())
    assert stock.per_round.drafting == ours.per_round.drafting == pytest.approx(0.05)
    assert stock.per_round.verifying == ours.per_round.verifying == pytest.approx(0.1)
    assert (stock.per_round.deciding, ours.per_round.deciding) == (None, pytest.approx(0.01))
    assert stock.per_round.outside == pytest.approx((1.5 - 0.9) / 6)
    assert ours.per_round.outside == pytest.approx((1.2 - 0.9) / 6)
    assert alone.per_round.outside == pytest.approx(0.0)


def test_compiled_passes_that_can_t_be_metered_leave_the_split_empty():
    blind = [r if r.split is None else dataclasses.replace(r, split=None) for r in requests()]
    alone, stock, ours = summarise([ALONE, BY_STOCK, OURS], blind)
    assert (alone.tokens_per_round, stock.per_round, stock.first_token) == (None, None, None)
    assert ours.per_round is None
    assert ours.tokens_per_round == pytest.approx(20 / 6)
    assert ours.draft_calls_per_round == 5


def test_a_text_without_a_pass_of_the_target():
    rows = [timed(OURS.label, 0, 0, 1.0, 9), dataclasses.replace(metered(OURS.label, 9, 9, 0), split=None)]
    rows[1] = dataclasses.replace(rows[1], counts=RunCounts(0, 9, 9, 9, 0))
    (ours,) = summarise([OURS], rows)
    assert (ours.tokens_per_round, ours.mean_accepted, ours.draft_calls_per_round) == (9, 9, 9)


def test_rows_of_a_batch_are_rounds_of_their_own():
    """Three rows, two passes: stock's kind of count has six rounds; ten tokens are kept beyond one a round."""
    rows = [timed(BY_STOCK.label, 0, 0, 1.0, 16), metered(BY_STOCK.label, 16, 10, 2)]
    (stock,) = summarise([BY_STOCK], rows, 3)
    assert stock.tokens_per_round == pytest.approx(16 / 6)
    assert stock.mean_accepted == pytest.approx(10 / 6)
    assert stock.draft_calls_per_round == 5
    assert stock.same_text is None
    assert summarise([ALONE], requests(), drawn=True)[0].same_text is None


def test_without_a_metered_repeat_only_what_counts_itself_shows_its_rounds():
    counts = RunCounts(rounds=3, drafted=12, accepted=6, draft_calls=12, target_calls=3)
    rows = [timed(BY_STOCK.label, 0, 0, 1.0, 9), timed(OURS.label, 0, 0, 1.0, 9, counts=counts)]
    stock, ours = summarise([BY_STOCK, OURS], rows)
    assert (stock.tokens_per_round, stock.mean_accepted) == (None, None)
    assert (ours.tokens_per_round, ours.mean_accepted, ours.per_round) == (3, 2, None)


def test_counts_of_all_requests_are_summed_where_they_are_known():
    """Ten tokens in two rounds and in five; only the first is metered."""
    known = [RunCounts(2, 10, 8, 10, 2, (0.8,)), RunCounts(5, 25, 5, 25, 5, (0.2,))]
    rows = [timed(OURS.label, 0, b, 1.0, 10, counts=each) for b, each in enumerate(known)]
    (ours,) = summarise([OURS], [*rows, metered(OURS.label, 10, 10, 2, 0.02, known[0])])
    assert (ours.tokens_per_round, ours.mean_accepted) == (pytest.approx(20 / 7), pytest.approx(13 / 7))
    assert (ours.acceptance_rates[0], ours.acceptance_rates[-1]) == (pytest.approx(0.2), pytest.approx(0.8))
    assert ours.per_round.drafting == pytest.approx(0.1 / 2)
