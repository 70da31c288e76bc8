"""What answers add up to, worked out by hand: speeds, ratios, rounds, and where the time went."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hf_lossy_assist.evaluation.answers import Answer
from hf_lossy_assist.evaluation.modes import parse_modes
from hf_lossy_assist.evaluation.requests import Stages
from hf_lossy_assist.evaluation.result import plot_scores
from hf_lossy_assist.evaluation.scores import RoundTime, baselines_of, mode_scores

BASELINES = {"plain": ["plain"], "stock": ["stock@3", "stock@5"], "lossless": ["lossless@3", "lossless@5"]}


def timed(mode: str, id: int, *seconds: float, tokens: int = 10, **more) -> Answer:
    return Answer(
        mode, id, None, tokens, more.pop("rounds", 4), more.pop("accepted", 6), float(np.median(seconds)), "",
        repeats=seconds if len(seconds) > 1 else (), **more,
    )  # fmt: skip


def rows(answers, **options):
    return {row.label: row for row in mode_scores(answers, "plain", baselines=BASELINES, **options)}


ANSWERS = [
    *(timed("plain", i, 1.0, 1.0, joules=5.0) for i in range(2)),
    *(timed("stock@3", i, 0.8, 0.8) for i in range(2)),
    *(timed("stock@5", i, 0.5, 0.5) for i in range(2)),
    *(timed("lossless@3", i, 0.9, 0.9) for i in range(2)),
    *(timed("lossless@5", i, 0.2, 0.4) for i in range(2)),
]


def test_speeds_ratios_and_latencies():
    found = rows(ANSWERS)
    ours = found["lossless@5"]
    assert ours.tokens_per_second == pytest.approx(20 / 0.6), "an answer takes the median of its repeats"
    assert (ours.speed.least, ours.speed.most) == (pytest.approx(25), pytest.approx(50))
    for name, ratio in {"plain": 1 / 0.3, "stock": 0.5 / 0.3, "lossless": 1.0}.items():
        assert ours.speed.times[name] == pytest.approx((ratio,) * 3), "both answers are alike"
    assert ours.speed.latencies == pytest.approx((0.3, 0.4, 0.4))
    assert (ours.speed.joules_per_token, found["plain"].speed.joules_per_token) == (None, 0.5)
    assert (ours.score, ours.difference) == (None, 0.0)


def test_ratios_have_an_interval_over_the_calls():
    """40 answers of 10 tokens, which one mode gives in 1 s and the other in 1 or 3: as numpy's bootstrap says."""
    seconds = np.where(np.arange(40) % 4, 1.0, 3.0)
    answers = [timed("plain", i, s) for i, s in enumerate(seconds)] + [timed("lossless@5", i, 1.0) for i in range(40)]
    drawn = np.random.default_rng(1).choice(seconds, (20_000, 40)).mean(1)
    assert rows(answers)["lossless@5"].speed.times["plain"] == pytest.approx(
        (1.5, *np.quantile(drawn, (0.025, 0.975))), abs=0.03
    )
    (whole,) = {rows(answers, batch_size=40)["lossless@5"].speed.times["plain"]}
    assert whole == pytest.approx((1.5,) * 3), "one call of 40 rows has no spread"


def test_what_was_not_timed_has_no_speed():
    untimed = replace(timed("lossless@5", 0, 1.0), seconds=None)
    found = rows([timed("plain", 0, 1.0), untimed, timed("lossless@5", 1, 1.0)])
    assert (found["lossless@5"].speed, found["lossless@5"].tokens_per_second) == (None, None)
    assert found["plain"].speed.times.keys() == {"plain"}


def test_shares_of_drafts_that_were_kept_are_of_answers_that_drafted():
    answers = [timed("lossless@5", i, 1.0, accepted=kept, drafted=10) for i, kept in enumerate((2, 5, 8))]
    found = rows([*answers, timed("plain", 0, 1.0, accepted=0, drafted=0)])
    assert found["lossless@5"].acceptance_rates == pytest.approx((0.26, 0.5, 0.74))
    assert found["plain"].acceptance_rates is None


def test_predicted_ratios_are_compared_with_the_ones_that_were_seen():
    """Predicted, the rule is 2 × as fast as lossless@5, and lossless@5 cheaper than lossless@3; seen, 1.5 ×."""
    answers = [
        timed(mode, i, s) for mode, s in (("lossless@3", 1.0), ("lossless@5", 3.0), ("min_p", 2.0)) for i in (0, 1)
    ]
    predicted = {mode: {0: s, 1: s} for mode, s in (("lossless@3", 5.0), ("lossless@5", 2.0), ("min_p", 1.0))}
    own = rows(answers, predicted=predicted)["min_p"]
    assert own.times_lossless == pytest.approx((2.0,) * 3)
    assert own.speed.over_seen == pytest.approx((2.0 / 1.5,) * 3)
    assert own.speed.times["lossless"][0] == pytest.approx(0.5), "the one that was seen to be fastest"
    assert rows(answers, predicted=predicted, batch_size=2)["min_p"].speed.over_seen is None


def stages(draft_calls: int, target_calls: int, deciding: float | None = None, seconds: float = 1.0) -> Stages:
    drafting, verifying = 0.01 * draft_calls, 0.1 * target_calls
    return Stages(
        drafting, verifying, deciding, seconds - drafting - verifying - (deciding or 0.0), draft_calls, target_calls,
        0.01 if draft_calls else None, 0.1, 0.25,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("watched", "deciding", "outside"),
    [
        ([stages(10, 2, 0.02, 0.4), stages(20, 4, 0.04, 0.8)], 0.06 / 6, (1.2 - 0.9) / 6),
        ([stages(10, 2, None, 0.6), stages(20, 4, None, 0.9)], None, (1.5 - 0.9) / 6),
    ],
)
def test_time_per_round(watched, deciding, outside):
    found = RoundTime.of([timed("x", i, 1.0, stages=each) for i, each in enumerate(watched)] + [timed("x", 2, 1.0)])
    assert (found.drafting, found.verifying, found.draft_calls) == pytest.approx((0.05, 0.1, 5))
    assert found.deciding == pytest.approx(deciding)
    assert found.outside == pytest.approx(outside)
    assert (found.draft_call, found.target_call, found.first_token) == (0.01, 0.1, 0.25)


def test_the_target_alone_drafts_nothing_and_what_was_not_watched_has_no_rounds():
    found = RoundTime.of([timed("plain", 0, 1.0, stages=stages(0, 10))])
    assert (found.draft_call, found.drafting, found.outside) == (None, 0, pytest.approx(0))
    assert RoundTime.of([timed("plain", 0, 1.0)]) is None


def test_baselines_are_of_this_process_and_by_the_target_s_own_law():
    modes = parse_modes("plain,plain:copies=2,draft,stock@3,lossless@auto,topk,lossless@4")
    assert baselines_of(modes) == {
        "plain": ["plain"],
        "stock": ["stock@3"],
        "lossless": ["lossless@auto", "lossless@4"],
    }
    assert baselines_of([replace(mode, engine="vllm") for mode in modes]) == {"plain": [], "stock": [], "lossless": []}


def test_a_call_s_speed_may_lie_beside_its_only_repeat(tmp_path):
    """Seconds of 40 answers are added up in two orders, which differ in the last digit."""
    row = rows([timed("plain", i, 1.0) for i in range(2)])["plain"]
    for towards in (0.0, np.inf):
        near = float(np.nextafter(row.speed.least, towards))
        plot_scores([replace(row, tokens_per_second=near)], tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
