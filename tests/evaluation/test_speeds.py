"""Ratios of speeds, and where those of other prompts lie: made-up costs, walks and runs."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from hf_lossy_assist.evaluation import speeds as room
from hf_lossy_assist.evaluation.replay import Walk
from hf_lossy_assist.evaluation.requests import run_request
from hf_lossy_assist.evaluation.speeds import Costs, Speeds, measure_costs, merged, spread_of


def costs(token: float = 0.1, **read: float) -> Costs:
    """Return costs such as ``r1=1.0, r6=1.5``, of a target that reads so many tokens."""
    return Costs(token, {int(n[1:]): x for n, x in read.items()})


FLAT = costs(r1=1.0, r33=1.0)


def walk(rounds, gamma: int, others: float = 0.0) -> Walk:
    rounds = np.array(rounds, dtype=float)
    nothing = np.zeros(len(rounds))
    return Walk(gamma, rounds[:, None] * np.eye(gamma + 1)[gamma], nothing, nothing + others, nothing, nothing)


def speeds(tokens=(40, 40, 40, 40), repeats=(), used: Costs | None = None) -> Speeds:
    return Speeds(np.array(tokens, dtype=float), used or merged(repeats or [FLAT]), repeats)


@pytest.mark.parametrize("gamma", [1, 5])
def test_no_round_emits_more_than_a_token_more_than_it_drafts(gamma):
    """A target that was busy while it read one token: its time would make γ = 1 worth 2.69 and more."""
    busy = [costs(0.05, r1=3.0, r2=1.0, r6=1.1)] * 3
    perfect = walk([40 / (gamma + 1)] * 4, gamma)
    found = speeds(repeats=busy)
    assert 1 <= found.times(perfect, found.alone)[0] <= gamma + 1
    given = speeds(used=busy[0])  # costs that fall, which no timing here returns
    assert given.times(perfect, given.alone) == (gamma + 1,) * 3


def test_what_repeats_differ_by_is_in_the_interval():
    """Three repeats: by hand, the mean's t interval of the logarithms of the three ratios."""
    repeats = [costs(0.1, r1=1.0, r6=x) for x in (1.0, 1.1, 1.2)]
    found, own = speeds(repeats=repeats), walk([10.0] * 4, 5)
    times, low, high = found.times(own, found.alone)
    logs = np.log([40 / (10 * (x + 0.5)) for x in (1.0, 1.1, 1.2)])
    assert times == pytest.approx(math.exp(logs[1]))
    half = 4.302653 * logs.std(ddof=1) / 3**0.5  # Student's t with two degrees of freedom
    assert (math.log(times / low), math.log(high / times)) == pytest.approx((half, half), rel=1e-3)
    quiet = speeds(repeats=[repeats[1]] * 3)
    assert quiet.times(own, quiet.alone) == pytest.approx((times,) * 3)


@pytest.mark.parametrize(("repeats", "steady"), [
    ([FLAT], True),
    ([FLAT, costs(0.12, r1=1.0, r33=1.2), costs(0.11, r1=1.2, r33=1.1)], True),
    ([FLAT, costs(r1=1.0, r33=1.3)], False),
    ([FLAT, costs(0.2, r1=1.0, r33=1.0)], False),
])  # fmt: skip
def test_a_machine_is_steady_if_its_repeats_agree(repeats, steady):
    found = speeds(repeats=repeats)
    assert found.steady is steady
    if not steady:
        words = "a drafted token took 100 to 200 ms" if repeats[1].drafted == 0.2 else "33 tokens"
        assert words in spread_of(repeats)[1]


def test_what_leaves_the_target_s_text_is_less_sure():
    """One other token in each text: half of it follows, as one more draw."""
    found, rounds = speeds(), [9.0, 10.0, 11.0, 10.0]
    own, base = (walk(rounds, 5, others) for others in (1.0, 0.0))
    assert found.times(base, walk(rounds, 5)) == pytest.approx((1, 1, 1))
    times, low, high = found.times(own, base)
    assert times == pytest.approx(1)
    variance = np.var(np.log(40 / (40 - np.array(rounds)))) * 3  # the jackknife's, of the sum of rounds
    assert high == pytest.approx(1 / low)
    assert math.log(high) == pytest.approx(3.182446 * math.sqrt(variance / 2), rel=1e-4)  # three degrees of freedom


@pytest.mark.parametrize("busy", ["", "wall", "both"])
def test_costs_are_what_further_rounds_add(models, monkeypatch, busy):
    """A machine on which reading a prompt takes 10 s, a token of the draft 0.5 s, and a round of it 2 s + 1 ms a token.

    The target alone takes 2.001 s a token. On a busy machine, each further repeat takes 1.3 times as long on the wall,
    and perhaps 1.27 times as long by the thread's own clock.
    """
    calls = []

    def run(models, mode, batch, tokens, clock):
        assert clock().shape == (2,)
        calls.append(mode)
        assert batch.ids.shape == (1, 7)
        gamma = mode.gamma or 0
        rounds, rest = divmod(tokens, gamma + 1)
        assert rest == 0
        each = 0.5 if mode.answers == "draft" else 2 + 0.001 * (gamma + 1) + 0.5 * gamma
        repeat = len(calls) // 8
        slower = [1.3**repeat if busy else 1.0, 1.27**repeat if busy == "both" else 1.0]
        return SimpleNamespace(seconds=(10 + rounds * each) * np.array(slower))

    monkeypatch.setattr(room, "run_request", run)
    found = measure_costs(models, [1, 5, 9], 7, (1, 5), repeats=2)
    assert len(found) == 2
    assert {costs.clock for costs in found} == {"thread" if busy else "wall"}
    assert {type(x) for costs in found for x in (costs.drafted, *costs.target.values())} == {float}, "as JSON wants"
    for costs in found if busy != "both" else ():
        assert costs.drafted == pytest.approx(0.5)
        assert costs.target == pytest.approx({1: 2.001, 2: 2.002, 6: 2.006})


def test_a_time_that_is_lost_in_noise_makes_nothing_sure(models, monkeypatch):
    """In the last repeat, further rounds seem to take no time."""
    calls = []

    def run(models, mode, batch, tokens, clock):
        calls.append(mode)
        return SimpleNamespace(seconds=np.array([10.0 + tokens * (len(calls) <= 16)] * 2))

    monkeypatch.setattr(room, "run_request", run)
    found = speeds(repeats=measure_costs(models, [1, 5, 9], 7, (1, 5), repeats=2))
    assert not found.steady
    times = found.times(walk([9.0, 10.0, 11.0, 10.0], 5), found.alone)
    assert times.low < 0.01 < times.value


def test_every_timed_round_has_all_of_its_tokens(models):
    made = []

    def noted(*given):
        made.append((given[1], run_request(*given)))
        return made[-1][1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(room, "run_request", noted)
        (costs,) = measure_costs(models, [1, 5, 9], 16, (1, 4), repeats=1)
    assert sorted(costs.target) == [1, 2, 5]
    for mode, response in made:
        assert mode.gamma is None or response.work[0][:2] == (
            rounds := response.tokens // (mode.gamma + 1),
            rounds * mode.gamma,
        )
    assert {response.tokens for mode, response in made if mode.gamma == 4} == {5, 30}
