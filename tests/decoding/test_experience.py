"""Drafting is given up after it has clearly lost several times, and tried again ever more rarely."""

from __future__ import annotations

import gc
import itertools

import pytest
import torch

from hf_lossy_assist.decoding import break_even
from hf_lossy_assist.decoding.break_even import BreakEven, Experience, Pace, Plan, experience_of
from hf_lossy_assist.drafting.draft_length import Stopwatch
from tests.tiny_models import tiny

VERDICTS = break_even.VERDICTS  # which the tests' fixture puts out of reach


@pytest.fixture(autouse=True)
def _decides(monkeypatch):
    monkeypatch.setattr(break_even, "VERDICTS", VERDICTS)


def plans(experience: Experience, drafting: float, plain: float, calls: int, n: int = 20, share=None) -> list[Plan]:
    """Let calls of n rounds draft for so many seconds, verify for one, and keep one token; return their plans."""
    found = []
    for _ in range(calls):
        found.append(experience.plan)
        alone, probed = found[-1] is Plan.PLAIN, found[-1] is Plan.DRAFT_AND_PROBE
        pace = Pace(n, n, n * plain) if alone else Pace(n, 2 * n, n * (drafting + 1), n * drafting, n)
        experience.learn(alone, pace, share if probed else None)
    return found


def shape(found: list[Plan]) -> list[int]:
    """Return how many calls in a row were drafted, then how many were not, and so on."""
    return [len(list(turn)) for _, turn in itertools.groupby(found, lambda plan: plan is Plan.PLAIN)]


def test_drafting_that_loses_is_given_up_and_tried_again_ever_more_rarely():
    """Two tokens in three seconds, or one in one: every drafted call shows it by itself."""
    found = shape(plans(Experience(), drafting=2, plain=1, calls=1200))
    assert found[:-1] == [3, 8, 1, 16, 1, 32, 1, 64, 1, 128, 1, 256, 1, 512, 1]


def test_evidence_is_of_several_calls_and_of_many_rounds():
    assert shape(plans(Experience(), drafting=2, plain=1, calls=60, n=1)) == [48, 8, 4]
    assert shape(plans(Experience(), drafting=2, plain=1, calls=10, n=1000)) == [3, 7]


def test_one_disturbed_call_in_three_says_nothing():
    experience = Experience()
    for _ in range(40):
        plans(experience, drafting=9, plain=1, calls=2)
        plans(experience, drafting=0.5, plain=1, calls=1)
    assert experience.plan is not Plan.PLAIN


@pytest.mark.parametrize("drafting", [0.1, 1.0, 1.2])
def test_drafting_that_wins_or_loses_by_less_than_a_tenth_stays(drafting: float):
    assert Plan.PLAIN not in plans(Experience(), drafting, plain=1, calls=200)


def test_drafting_comes_back_when_it_pays_and_has_to_lose_as_often_as_before():
    experience = Experience()
    assert plans(experience, drafting=2, plain=1, calls=11)[-1] is Plan.PLAIN
    assert shape(plans(experience, drafting=0.2, plain=1, calls=50)) == [50]
    assert shape(plans(experience, drafting=2, plain=1, calls=12)) == [3, 8, 1]


def test_the_plain_token_counts_as_it_was_measured_once_it_was():
    """A plain token takes longer than a round without its draft was thought to: drafting is back after one try."""
    assert shape(plans(Experience(), drafting=2, plain=1.8, calls=15)) == [3, 8, 4]


def test_a_forward_over_one_token_counts_after_three_were_timed():
    """Drafting for no time at all loses where a forward over one token takes a quarter of one over a draft."""
    found = plans(Experience(), drafting=0, plain=0.25, calls=20, n=50, share=0.25)
    assert shape(found)[0] == 6, "three calls before the third such forward, and three comparisons with it"
    drafted = plans(Experience(), drafting=0, plain=1, calls=64, n=50, share=0.9)
    assert [i + 1 for i, plan in enumerate(drafted) if plan is Plan.DRAFT_AND_PROBE] == [1, 2, 4, 8, 16, 32, 64]
    short = plans(Experience(), drafting=0, plain=1, calls=9, n=49)
    assert set(short) == {Plan.DRAFT_AND_PROBE}, "the first long call is still to come"


def test_what_is_known_belongs_to_models_goes_with_them_and_is_bounded():
    target, draft = tiny(), tiny()
    first = experience_of(target, id(draft), "cpu")
    assert experience_of(target, id(draft), "cpu") is first is not experience_of(target, id(draft), "cuda")
    for i in range(300):
        experience_of(target, i)
    assert experience_of(target, id(draft), "cpu") is not first
    before = len(break_even._known)
    del target
    gc.collect()
    assert len(break_even._known) == before - 1


def test_a_probe_is_compared_with_forwards_over_as_many_rows():
    """Forwards over eight rows take four seconds, those over the last one take one, with a draft or without."""
    now, learnt = [0.0], []
    watch, experience = Stopwatch(torch.device("cpu")), Experience()
    watch.mark, experience.learn = lambda: now[0], lambda *seen: learnt.append(seen)
    run = BreakEven(experience, Plan.DRAFT_AND_PROBE, watch)
    for rows, seconds in [(8, 4.0)] * 40 + [(1, 1.0)] * 20:
        for stage in (0.5, seconds, 0.25):
            run.mark()
            now[0] += stage
        run.end(2.0, rows, first=False)
    run.probe(lambda mark: (mark(), now.append(now.pop() + 1.0), mark())[::2])
    run.finish()
    assert learnt == [(False, Pace(60, 120.0, 225.0, 30.0, 180.0), 1.0)]
