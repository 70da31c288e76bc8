"""How well scores, differences and ratios are known, and what answers add up to, worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from math import comb

import numpy as np
import pytest
from scipy import stats

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.evaluation.answers import Answer
from hf_lossy_assist.evaluation.modes import parse_modes
from hf_lossy_assist.evaluation.quality import interval, paired_interval, times_as_fast
from hf_lossy_assist.evaluation.result import EvaluationResult, answer_table, baselines_of
from hf_lossy_assist.evaluation.tables import as_text


def interval_of_counts(n: int, better: int, worse: int) -> tuple[float, float]:
    own = [1.0] * better + [0.0] * worse + [1.0] * (n - better - worse)
    other = [0.0] * better + [1.0] * worse + [1.0] * (n - better - worse)
    _, low, high = paired_interval(own, other)
    return low, high


@pytest.mark.parametrize(("better", "worse"), [(0.0, 0.01), (0.02, 0.02), (0.0, 0.1), (0.05, 0.2), (0.1, 0.1)])
def test_the_interval_of_right_and_wrong_answers_covers_the_truth(better, worse):
    """Exactly, by enumeration: how probable are the counts whose interval has the true difference in it?"""
    n, covered = 40, 0.0
    for a in range(n + 1):
        for b in range(n + 1 - a):
            low, high = interval_of_counts(n, a, b)
            if low <= better - worse <= high:
                rest = (1 - better - worse) ** (n - a - b)
                covered += comb(n, a) * comb(n - a, b) * better**a * worse**b * rest
    assert covered >= 0.94
    assert covered < 1 or worse <= 0.01


def times(rng, n: int, mean: float, spread: float, noise: float) -> np.ndarray:
    """Draw tokens and seconds of two modes, ``(n, 4)``."""
    tokens = np.exp(rng.normal(mean, spread, n))
    return np.stack([tokens, tokens / 5 * np.exp(rng.normal(0, noise, n)), tokens, tokens / 4], 1)


@pytest.mark.parametrize("law", [(5.5, 0.4, 0.1), (5, 0.8, 0.2)], ids=["alike", "long-tailed"])
def test_the_interval_of_a_ratio_covers_the_truth(law):
    """1,500 repeats: 92 to 98 % covered. 90 % in truth would pass once in 200, and so would 99.3 %."""
    rng = np.random.default_rng(0)
    sums = times(rng, 1_000_000, *law).sum(0)
    truth = sums[0] * sums[3] / (sums[1] * sums[2])
    for n in (6, 12, 40):
        covered = 0
        for _ in range(1500):
            rows = times(rng, n, *law)
            own = times_as_fast(rows[:, :2], rows[:, 2:])
            covered += own[1] <= truth <= own[2]
        assert 0.92 <= covered / 1500 <= 0.98, n


@pytest.mark.parametrize("n", [2, 3, 4, 9, 101, 5001])
def test_the_interval_of_a_mean_is_the_t_test_s(n):
    values = np.random.default_rng(n).normal(size=n)
    expected = pytest.approx((values.mean(), *t_interval(values)), rel=1e-6)
    assert interval(values) == interval(np.stack([values, np.ones(n)], 1)) == expected
    assert paired_interval((0.5 + values / 20).tolist(), [0.5] * n) == pytest.approx(
        (values.mean() / 20, *(max(-1, min(1, x)) for x in t_interval(values / 20))), rel=1e-6
    )


@pytest.mark.parametrize("log", [False, True])
def test_the_interval_of_a_ratio_is_the_jackknife_s(log):
    """By leaving each problem out in turn, as the textbook has it."""
    rows = np.random.default_rng(0).uniform(1, 4, (7, 3))

    def ratio(some):
        found = some[:, 0].sum() / some[:, -1].sum()
        return math.log(found) if log else found

    without = np.array([ratio(np.delete(rows, i, 0)) for i in range(7)])
    half = stats.t.ppf(0.975, 6) * math.sqrt(6 / 7 * ((without - without.mean()) ** 2).sum())
    ends = np.array([ratio(rows), ratio(rows) - half, ratio(rows) + half])
    assert interval(rows, log=log) == pytest.approx(np.exp(ends) if log else ends)


def test_what_shows_no_spread_has_an_interval_without_length():
    assert interval([3.0]) == interval([3.0, 3.0]) == (3.0, 3.0, 3.0)
    assert str(interval([(6, 2), (3, 1)], log=True)) == "3.00"


def t_interval(apart):
    half = stats.t.ppf(0.975, len(apart) - 1) * apart.std(ddof=1) / len(apart) ** 0.5
    return apart.mean() - half, apart.mean() + half


def test_the_interval_is_that_of_bonett_and_price():
    n, better, worse = 200, 4, 11
    p, q = (better + 1) / (n + 2), (worse + 1) / (n + 2)
    low, high = interval_of_counts(n, better, worse)
    # Theirs has the normal quantile and the variance of a population.
    half = stats.t.ppf(0.975, n + 1) * np.sqrt((p + q - (p - q) ** 2) / (n + 1))
    assert (low, high) == (pytest.approx(p - q - half), pytest.approx(p - q + half))


def test_nothing_seen_is_not_certain():
    for n in (1, 5, 1000):
        difference, low, high = paired_interval([1.0] * n, [1.0] * n)
        assert difference == 0
        assert -low == pytest.approx(high)
        assert 2 / n < high or n == 1
    assert paired_interval([1.0], [0.0])[2] == 1
    # Scores between are known no better: one problem, or problems that differ alike, show no spread.
    assert paired_interval([0.6], [0.7]) == pytest.approx((-0.1, -1, 1))
    assert paired_interval([0.7] * 8, [0.7] * 8) == paired_interval([1.0] * 8, [1.0] * 8)
    with pytest.raises(LossyValueError, match=r"score .* from 0 to 1, but one is 1\.5"):
        paired_interval([0.5], [1.5])


def answer(mode: str, id: int, score: float, tokens: int = 10, rounds: int = 4, accepted: int = 6) -> Answer:
    return Answer(mode, id, score, tokens, rounds, accepted, 0.5, f"text {score}")


def test_modes_are_summed_up_and_compared_problem_by_problem():
    own, other = [1.0, 0.5, 0.0], [0.5, 0.5, 0.0]
    answers = [answer("a", i, score) for i, score in enumerate(own)]
    answers += [answer("b", i, score, 20, 5, 15) for i, score in enumerate(other)]
    answers += [answer("c", 2, 1.0, 5, 0, 5)]
    a, b, c = EvaluationResult.of(answers, "b").modes.values()
    assert (b.difference, b.low, b.high) == (0, 0, 0)
    assert (a.difference, a.low, a.high) == paired_interval(own, other)
    assert (a.score, a.n, b.score) == (0.5, 3, pytest.approx(1 / 3))
    assert (b.mean_accepted, b.tokens_per_round, b.tokens_per_second) == (3, 4, 40)
    assert b.target_calls_per_100_tokens == 25
    assert (a.same_texts, b.same_texts, c.same_texts) == (2, 3, 0)
    assert (c.n, c.difference) == (1, 1.0), "only on the problems that both have answered"
    assert (c.tokens_per_round, c.target_calls_per_100_tokens) == (0, 0), "the target was never asked"


def test_lengths_are_compared_problem_by_problem():
    tokens = {"plain": [10, 20, 30, 40], "topk": [12, 20, 36, 44]}
    answers = [
        Answer(mode, i, 1.0, n, n, 0, n / 10, "", cut=n > 35) for mode, own in tokens.items() for i, n in enumerate(own)
    ]
    alone, lossy = EvaluationResult.of(answers, "plain").modes.values()
    assert (alone.tokens_per_answer, alone.tokens_apart) == (25.0, None)
    assert (alone.cut_off, lossy.cut_off) == (0.25, 0.5)
    known = stats.ttest_rel(tokens["topk"], tokens["plain"]).confidence_interval()
    assert (lossy.tokens_per_answer, lossy.tokens_apart) == (28.0, pytest.approx((3.0, known.low, known.high)))
    assert lossy.seconds_per_answer == pytest.approx(2.8)
    shown = as_text(answer_table([alone, lossy], "plain"))
    assert f"+3.0 ({known.low:+.1f} to {known.high:+.1f})" in shown


BASELINES = {"plain": ["plain"], "stock": ["stock@3", "stock@5"], "lossless": ["lossless@3", "lossless@5"]}


def timed(mode: str, id: int, seconds: float) -> Answer:
    return Answer(mode, id, None, 10, 4, 6, seconds, "")


def rows(answers, **options):
    return EvaluationResult.of(answers, "plain", BASELINES, **options).modes


ANSWERS = [
    *(timed("plain", i, 1.0) for i in range(2)),
    *(timed("stock@3", i, 0.8) for i in range(2)),
    *(timed("stock@5", i, 0.5) for i in range(2)),
    *(timed("lossless@3", i, 0.9) for i in range(2)),
    *(timed("lossless@5", i, 0.3) for i in range(2)),
]


def test_speeds_and_ratios():
    found = rows(ANSWERS)
    ours = found["lossless@5"]
    assert ours.tokens_per_second == pytest.approx(20 / 0.6)
    for name, ratio in {"plain": 1 / 0.3, "stock": 0.5 / 0.3, "lossless": 1.0}.items():
        assert ours.speed.times[name] == pytest.approx((ratio,) * 3), "both answers are alike"
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


def test_baselines_are_of_this_process_and_by_the_target_s_own_law():
    modes = parse_modes("plain,draft,stock@3,lossless@auto,topk,lossless@4")
    assert baselines_of(modes) == {
        "plain": ["plain"],
        "stock": ["stock@3"],
        "lossless": ["lossless@auto", "lossless@4"],
    }
    assert baselines_of([replace(mode, engine="vllm") for mode in modes]) == {"plain": [], "stock": [], "lossless": []}
