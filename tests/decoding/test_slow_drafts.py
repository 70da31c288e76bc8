"""A call that was slower than the target alone says so, once; no clock and no earlier call decides anything."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from hf_lossy_assist.decoding import slow_drafts
from tests.acceptors.fixtures import verifier_head
from tests.nightly import nightly
from tests.tiny_models import noisy_copy, padded, prompt, tiny

TREE = {"tree": {"depth": 3, "top_k": 2, "nodes": "auto"}}


class World:
    """A target and a draft whose forwards take so many seconds: the clock moves in them alone."""

    def __init__(self, useless: bool) -> None:
        self.now = 0.0
        self.target = tiny()
        self.draft = tiny(seed=5) if useless else noisy_copy(self.target, 0.05)
        self.seconds = {"target": 1.0, "draft": 1.0}
        for name in self.seconds:
            getattr(self, name).register_forward_hook(lambda *_, name=name: self._pass(name))

    def _pass(self, name: str) -> None:
        self.now += self.seconds[name]

    def call(self, **options: Any) -> Any:
        """Return the output of a call, after seeding what is drawn."""
        torch.manual_seed(0)
        common = {
            "input_ids": prompt(), "assistant_model": self.draft, "lossy_mode": "lossless", "max_new_tokens": 60,
            "eos_token_id": None, "pad_token_id": 0, "do_sample": False, "return_dict_in_generate": True,
            "num_assistant_tokens": 2,
        }  # fmt: skip
        return self.target.generate(**common | options)

    def warned(self, **options: Any) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.call(**options)
        return [str(x.message) for x in caught if "slower here than the target alone" in str(x.message)]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    """Return what makes a world, whose clock is everybody's."""

    def make(useless: bool = False) -> World:
        made = World(useless)
        monkeypatch.setattr(time, "perf_counter", lambda: made.now)
        monkeypatch.setattr(slow_drafts, "ROUNDS", 16)
        return made

    return make


CALLS = {
    "greedy": {"lossy_mode": "topk", "lossy_config": {"k": 4}},
    "drawn": {"lossy_mode": "typical", "do_sample": True},
    "batch": {"lossy_mode": "topk", "lossy_config": {"k": 4}, **padded()},
    "tree": {"lossy_mode": "topk", "lossy_config": {"k": 4, **TREE}},
    "heuristic": {"lossy_mode": "topk", "lossy_config": {"k": 4}, "num_assistant_tokens_schedule": "heuristic"},
    "sprinter": {"lossy_mode": "sprinter"},
}


@pytest.mark.filterwarnings("ignore:speculative decoding was slower")
@pytest.mark.parametrize("case", nightly(CALLS, but=("tree", "heuristic", "sprinter")))
def test_neither_the_clock_nor_an_earlier_call_changes_anything(world: Callable[..., World], case: str):
    w, found, options = world(), [], dict(CALLS[case])
    schedule = options.pop("num_assistant_tokens_schedule", None)
    if schedule is not None:
        w.draft.generation_config.num_assistant_tokens_schedule = schedule
    if case == "sprinter":
        options |= {"lossy_head": verifier_head(w.target, w.draft, scale=3.0, seed=1)}
    for seconds in (1e3, 1e3, 1e3, 1e3, 1e-6):
        w.seconds["draft"] = seconds
        out = w.call(**options)
        stats = out.lossy_stats.to_dict(rows=True)
        for each in (stats, *stats["rows"]):
            del each["seconds"], each["tokens_per_second"]
        found.append((out.sequences.tolist(), stats, out.lossy_stats.trace))
    assert found == [found[0]] * len(found)
    assert found[0][1]["drafted"] > 0


def test_a_call_that_was_slower_says_so_once(world: Callable[..., World]):
    w = world(useless=True)
    (said,) = w.warned()
    slow, most, kept, share = map(float, re.findall(r"(\d+(?:\.\d+)?)(?= ms| tokens|% of its)", said))
    assert (slow, most, share) == (pytest.approx(3000 / kept, rel=0.01), 1000, 67)
    assert "`lossy-assist advise`" in said
    assert w.warned() == [], "a target is named once"
    assert len(world(useless=True).warned()) == 1, "and another target once more"


def test_a_draft_of_which_nothing_is_kept_may_have_another_tokenizer(world: Callable[..., World]):
    """Its tokens then have other numbers; a draft that is kept now and then has the target's."""
    w = world()
    w.draft.lm_head.weight = torch.nn.Parameter(w.target.lm_head.weight.detach().roll(1, 0), requires_grad=False)
    w.draft.model.load_state_dict(w.target.model.state_dict())
    with pytest.warns(UserWarning, match="whether the draft has the target's tokenizer"):
        stats = w.call().lossy_stats
    assert stats.drafted > 0 == stats.accepted
    (said,) = world(useless=True).warned()
    assert "tokenizer" not in said


@pytest.mark.parametrize(
    ("draft", "options"),
    {
        "drafting pays": (0.01, {}),
        "as fast as the target alone": (0.05, {"num_assistant_tokens": 1}),
        "too few rounds to say": (1.0, {"max_new_tokens": 12}),
    }.values(),
)
def test_other_calls_say_nothing(world: Callable[..., World], draft: float, options: dict[str, Any]):
    w = world(useless=True)
    w.seconds["draft"] = draft
    assert w.warned(**options) == []


def test_a_forward_that_is_slow_once_says_nothing(world: Callable[..., World]):
    """A round in which something is compiled, or a prompt is read, is one of many."""
    w, calls = world(), []
    w.seconds["draft"] = 0.01

    def slow(*_: Any) -> None:
        calls.append(1)
        w.now += 1e4 * (len(calls) in (1, 9))

    w.draft.register_forward_hook(slow)
    assert w.warned() == []
    assert len(calls) > 9


def test_rows_that_end_later_count_as_long_as_they_go_on(world: Callable[..., World]):
    assert len(world(useless=True).warned(**padded())) == 1
    w = world()
    w.seconds["draft"] = 0.01
    assert w.warned(**padded()) == []


def test_nothing_is_warned_of_where_modes_are_compared(world: Callable[..., World]):
    w = world()
    w.seconds["draft"] = 1e3
    reset = slow_drafts.measuring.set(True)
    assert w.warned() == []
    slow_drafts.measuring.reset(reset)
    assert len(w.warned()) == 1, "and a later call says so"
