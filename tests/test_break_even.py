"""Speculation is given up where the target alone is faster, and only there."""

from __future__ import annotations

import itertools

import pytest

from hf_lossy_assist import errors
from hf_lossy_assist.config import parse
from hf_lossy_assist.decoding.break_even import BreakEven, NoBreakEven
from tests.models import noisy_copy, prompt, tiny


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def drive(speculative: float, plain: float, rounds: int, tokens: int = 3) -> tuple[BreakEven, list[bool]]:
    """Let rounds take the given seconds; return what was decided and which rounds were plain."""
    clock = Clock()
    judge = BreakEven(patience=10.0, rounds=8, clock=clock)
    modes = []
    for _ in range(rounds):
        modes.append(judge.plain)
        clock.now += plain if judge.plain else speculative
        judge.observe(1 if judge.plain else tokens)
    return judge, modes


def test_slower_speculation_is_given_up_for_good():
    judge, modes = drive(speculative=4.0, plain=1.0, rounds=40)
    assert judge.given_up
    assert modes[:8] == [False] * 8
    assert all(modes[8:])


def test_faster_speculation_stays_and_is_asked_ever_less_often():
    judge, modes = drive(speculative=2.0, plain=1.0, rounds=400)
    assert not judge.given_up
    probes = [i for i in range(1, 400) if modes[i] and not modes[i - 1]]
    gaps = [b - a for a, b in itertools.pairwise(probes)]
    assert all(later > 1.5 * earlier for earlier, later in itertools.pairwise(gaps))
    assert sum(modes) == 4 * len(probes) or modes[-1]


def test_nothing_is_asked_before_its_time():
    assert not any(drive(speculative=0.01, plain=0.001, rounds=900)[1])


@pytest.mark.parametrize("seed", [None, 0])
def test_a_run_that_gives_up_says_so_and_keeps_its_text(monkeypatch, seed: int | None):
    class Impatient(BreakEven):
        def __init__(self):
            super().__init__(patience=0.0, rounds=5)
            self.MARGIN = 1e9

    target = tiny()
    kwargs = {"input_ids": prompt(), "max_new_tokens": 60, "eos_token_id": None, "do_sample": False}
    plain = target.generate(**kwargs)
    monkeypatch.setattr("hf_lossy_assist.call.lossy_call.BreakEven", Impatient)
    errors.warn_once.cache_clear()
    with pytest.warns(UserWarning, match="slower than the target alone"):
        out = target.generate(
            **kwargs, assistant_model=noisy_copy(target), lossy_mode="lossless", return_dict_in_generate=True,
            lossy_config={"break_even": True, **({} if seed is None else {"seed": seed})},
        )  # fmt: skip
    stats = out.lossy_stats
    assert out.sequences.tolist() == plain.tolist()
    assert 5 < stats.plain_after < 60
    # Four plain rounds to compare with, and all those after.
    assert stats.accepted_histogram[0] >= 60 - stats.plain_after + 4
    assert stats.trace[stats.plain_after :] == ("bonus",) * (60 - stats.plain_after)


def test_the_switch():
    assert parse("lossless").break_even
    assert not parse("lossless", {"seed": 1}).break_even, "equal seeds give equal runs, whatever the time"
    assert parse("lossless", {"seed": 1, "break_even": True}).break_even
    assert not parse("lossless", {"break_even": False}).break_even
    assert not NoBreakEven().plain
