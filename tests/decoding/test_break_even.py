"""Speculation is given up where the target alone is faster, and only there; what was learnt stays."""

from __future__ import annotations

import gc
import itertools

import pytest

from hf_lossy_assist import errors
from hf_lossy_assist.config import parse
from hf_lossy_assist.decoding import break_even
from hf_lossy_assist.decoding.break_even import AlwaysDraft, BreakEven, SpeedComparison, speed_comparison
from tests.models import tiny


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def drive(
    comparison: SpeedComparison, drafting: float, plain: float, rounds: int, tokens: int = 3, calls: int = 1
) -> list[bool]:
    """Let rounds of several calls take the given seconds; return which of them were plain."""
    clock, modes = Clock(), []
    for _ in range(calls):
        run = BreakEven(comparison, clock)
        for _ in range(rounds):
            modes.append(run.plain)
            clock.now += plain if run.plain else drafting
            run.observe(1 if run.plain else tokens)
    return modes


def test_slower_speculation_is_given_up_within_the_first_second():
    """A useless draft makes every token four times as expensive: 50 ms rounds of one token, the target alone 12."""
    modes = drive(SpeedComparison(), drafting=0.05, plain=0.0125, rounds=400, tokens=1)
    first = modes.index(True)
    assert first * 0.05 < 1
    assert all(modes[first : first + 40])
    drafted = sum(not x for x in modes[first:])
    assert drafted < 0.05 * len(modes[first:]), "it is tried again now and then only"


def test_a_call_goes_on_from_what_others_have_learnt():
    """Three answers of 20 rounds: the draft is useless, and only the first pays for finding out."""
    modes = drive(SpeedComparison(), drafting=0.05, plain=0.0125, rounds=30, tokens=1, calls=3)
    assert modes[:10] == [False] * 10
    assert all(modes[30:60])


def test_faster_speculation_stays_and_is_asked_ever_less_often():
    comparison = SpeedComparison()
    modes = drive(comparison, drafting=0.2, plain=0.1, rounds=2000)
    assert not comparison.plain
    probes = [i for i in range(1, len(modes)) if modes[i] and not modes[i - 1]]
    gaps = [b - a for a, b in itertools.pairwise(probes)]
    assert all(later > 1.5 * earlier for earlier, later in itertools.pairwise(gaps[:4]))
    assert max(gaps) <= 1 + (comparison.longest + 0.2) / 0.2 + comparison.probes + 1
    assert sum(modes) < 0.05 * len(modes)


def test_what_has_become_worth_it_is_taken_up_again():
    comparison = SpeedComparison()
    drive(comparison, drafting=0.4, plain=0.1, rounds=40)
    assert comparison.plain
    drive(comparison, drafting=0.1, plain=0.1, rounds=200)
    assert not comparison.plain


def test_a_difference_of_less_than_a_tenth_changes_nothing():
    modes = drive(SpeedComparison(), drafting=0.31, plain=0.1, rounds=1000)
    assert 0 < 0.1 * sum(modes) < 0.02 * 0.31 * len(modes), "what measuring costs"


def test_the_round_that_reads_the_prompt_does_not_count():
    comparison, clock = SpeedComparison(), Clock()
    for _ in range(100):
        run = BreakEven(comparison, clock)
        clock.now += 100.0
        run.observe(1)
    assert not comparison.next_is_plain


def test_what_is_learnt_belongs_to_models_and_goes_with_them():
    target, draft = tiny(), tiny()
    assert speed_comparison(target, id(draft), "cpu") is speed_comparison(target, id(draft), "cpu")
    assert speed_comparison(target, id(draft), "cpu") is not speed_comparison(target, id(draft), "cuda")
    before = len(break_even._comparisons)
    del target
    gc.collect()
    assert len(break_even._comparisons) == before - 1


@pytest.mark.parametrize("seed", [None, 0])
@pytest.mark.parametrize("mode", ["lossless", "sprinter"])
def test_a_run_that_gives_up_says_so_and_goes_on(monkeypatch, pair, mode: str, seed: int | None):
    monkeypatch.setattr(break_even, "PATIENCE", 0.0)
    monkeypatch.setattr(SpeedComparison, "MARGIN", 1e9)
    errors.warn_once.cache_clear()
    inputs = pair.tokenizer(pair.task.examples("test", 1)[0].prompt, return_tensors="pt")
    head = {"lossy_head": pair.heads["verifier"]} if mode == "sprinter" else {}
    kwargs = {**inputs, "max_new_tokens": 60, "eos_token_id": None, "do_sample": False}
    plain = pair.target.generate(**kwargs)
    with pytest.warns(UserWarning, match="slower than the target alone"):
        out = pair.target.generate(
            **kwargs, assistant_model=pair.draft, lossy_mode=mode, return_dict_in_generate=True, **head,
            lossy_config={"break_even": True, **({} if seed is None else {"seed": seed})},
        )  # fmt: skip
    stats = out.lossy_stats
    if mode == "lossless":
        assert out.sequences.tolist() == plain.tolist()
    assert 5 < stats.plain_after < 60
    assert stats.trace[stats.plain_after] == "bonus"


def test_the_switch():
    assert parse("lossless").break_even
    assert not parse("lossless", {"seed": 1}).break_even, "equal seeds give equal runs, whatever the time"
    assert parse("lossless", {"seed": 1, "break_even": True}).break_even
    assert not parse("lossless", {"break_even": False}).break_even
    assert not AlwaysDraft().plain
