"""Drafting that loses is given up in later calls, and only there; a call's own text never depends on the clock."""

from __future__ import annotations

import copy
import functools
import time
from collections import Counter

import pytest
import torch

from hf_lossy_assist import LossyVerification
from hf_lossy_assist.call.config import LossyConfig
from hf_lossy_assist.compat import CACHE
from hf_lossy_assist.decoding import break_even, loop
from hf_lossy_assist.decoding.break_even import BreakEven, Experience, Plan
from hf_lossy_assist.drafting.draft_length import Stopwatch
from hf_lossy_assist.heads import Head
from tests.acceptors.fixtures import Repeating, verifier_head
from tests.acceptors.table import judge_head
from tests.eagle3_heads import random_head
from tests.families import family
from tests.tiny_models import noisy_copy, padded, prompt, tiny

parse = LossyConfig.from_fields

pytestmark = pytest.mark.filterwarnings("ignore:speculative decoding is slower")
VERDICTS = break_even.VERDICTS  # which the tests' fixture puts out of reach
TREE = {"tree": {"depth": 3, "top_k": 2, "nodes": 6}}


@pytest.fixture(autouse=True)
def _decides(monkeypatch):
    monkeypatch.setattr(break_even, "VERDICTS", VERDICTS)


class World:
    """A target and a draft whose forwards take so many seconds: the clock moves in them alone."""

    def __init__(self, target=None, *, useless: bool = False) -> None:
        self.now, self.forwards = 0.0, Counter()
        self.target = tiny() if target is None else target
        self.draft = tiny(seed=5) if useless else noisy_copy(self.target, 0.05)
        self.seconds = {"target": 1.0, "draft": 1.0}
        for name in self.seconds:
            getattr(self, name).register_forward_hook(lambda *_, name=name: self._pass(name))

    def _pass(self, name: str) -> None:
        self.forwards[name] += 1
        self.now += self.seconds[name]

    def call(self, **options):
        """Return the output of a call, after seeding what is drawn."""
        torch.manual_seed(0)
        self.forwards.clear()
        common = {
            "input_ids": prompt(), "assistant_model": self.draft, "lossy_mode": "lossless", "max_new_tokens": 60,
            "eos_token_id": None, "pad_token_id": 0, "do_sample": False, "return_dict_in_generate": True,
            "num_assistant_tokens": 2,
        }  # fmt: skip
        return self.target.generate(**common | options)


@pytest.fixture
def world(monkeypatch):
    """Return what makes a world, whose clock is everybody's."""

    def make(target=None, useless: bool = False) -> World:
        made = World(target, useless=useless)
        monkeypatch.setattr(time, "perf_counter", lambda: made.now)
        return made

    return make


@pytest.fixture
def hasty(monkeypatch, world):
    """Return what makes a world in which drafting loses, and is given up at the first sign."""
    monkeypatch.setattr(break_even, "ROUNDS", 1)
    monkeypatch.setattr(break_even, "VERDICTS", 1)
    return functools.partial(world, useless=True)


def shown(out) -> tuple:
    """Return a call's text and all of its statistics but for the seconds."""
    stats = out.lossy_stats.to_dict(rows=True)
    for each in (stats, *stats["rows"]):
        del each["seconds"], each["tokens_per_second"]
    return out.sequences.tolist(), stats, out.lossy_stats.trace


CALLS = {
    "greedy": {"lossy_mode": "topk", "lossy_config": {"k": 4}},
    "drawn": {"lossy_mode": "typical", "do_sample": True},
    "batch": {"lossy_mode": "topk", "lossy_config": {"k": 4}, **padded()},
    "tree": {"lossy_mode": "topk", "lossy_config": {"k": 4, **TREE}},
    "seeded": {"lossy_mode": "topk", "lossy_config": {"k": 4, "seed": 1, "break_even": True}, "do_sample": True},
    "sprinter": {"lossy_mode": "sprinter"},
}


@pytest.mark.parametrize("case", CALLS)
def test_the_clock_changes_nothing_in_a_call(world, case: str):
    w, found, options = world(), [], CALLS[case]
    if case == "sprinter":
        options = options | {"lossy_head": verifier_head(w.target, w.draft, scale=3.0, seed=1)}
    for seconds in (1e3, 1e-6):
        break_even.forget_speeds()
        w.seconds["draft"] = seconds
        found.append(shown(w.call(**options)))
    assert found[0] == found[1]
    assert found[0][1]["drafted"] > 0


def test_rows_that_are_decoded_one_after_another_have_one_decision(hasty):
    w = hasty(family("Qwen3_5"))
    first, second = (w.call(**padded((7, 7, 7)), max_new_tokens=12).lossy_stats.rows for _ in range(2))
    assert all(row.drafted > 0 and row.plain_after is None for row in first)
    assert all(row.drafted == 0 and row.plain_after == 0 for row in second)


@pytest.mark.parametrize("mode", ["topk", "typical", "lossless"])
def test_transformers_own_loop_gives_the_text_of_ours_with_default_settings(world, mode: str):
    """However slow drafting seems: stock's loop has no break-even."""
    w, options = world(), {"max_new_tokens": 40, "eos_token_id": None, "do_sample": False}
    w.seconds["draft"] = 1e3
    own = w.target.generate(prompt(), assistant_model=w.draft, lossy_mode=mode, **options)
    with LossyVerification(mode, w.target, assistant_model=w.draft) as hook:
        stock = w.target.generate(prompt(), assistant_model=w.draft, logits_processor=[hook], **options)
    assert own.tolist() == stock.tolist()


def test_calls_that_lose_make_later_ones_plain_until_drafting_pays(world):
    w, found = world(useless=True), []
    text = w.target.generate(prompt(), max_new_tokens=30, eos_token_id=None, do_sample=False).tolist()

    def drafted(calls: int) -> list[bool]:
        outs = [w.call(max_new_tokens=30) for _ in range(calls)]
        found.extend(out.sequences.tolist() for out in outs)
        assert all((out.lossy_stats.plain_after == 0) is (out.lossy_stats.drafted == 0) for out in outs)
        return [out.lossy_stats.drafted > 0 for out in outs]

    assert drafted(2) == [True] * 2
    with pytest.warns(UserWarning, match="so later calls like this one are decoded plainly"):
        assert drafted(1) == [True]
    assert drafted(9) == [False] * 8 + [True]
    w.draft.load_state_dict(w.target.state_dict())
    w.seconds["draft"] = 0.01
    assert drafted(24) == [False] * 16 + [True] * 8
    assert found == [text] * len(found)


def test_rounds_that_read_a_prompt_do_not_count(hasty):
    w = hasty()
    w.seconds["draft"] = 0.0

    def slow(module, args, kwargs, output):
        w.now += 1e3 * (kwargs["input_ids"].shape[1] > 3)

    w.draft.register_forward_hook(slow, with_kwargs=True)
    for inputs in ({"input_ids": prompt()}, padded((7, 7))):
        assert [drafts(w, **inputs, max_new_tokens=12) for _ in range(3)] == [True] * 3
    assert w.now > 6e3


BASE = {
    "lossy_mode": "topk", "lossy_config": {"k": 2}, "do_sample": True, "temperature": 0.9, "top_k": 0,
    "max_new_tokens": 30,
}  # fmt: skip
SETTINGS = {
    "a rule's setting": {"lossy_config": {"k": 3}},
    "another rule": {"lossy_mode": "typical", "lossy_config": {}},
    "several rules": {"lossy_mode": ["topk", "typical"], "lossy_config": {"topk": {"k": 2}}},
    "a limit": {"lossy_config": {"k": 2, "budget": 0.1}},
    "the draft length": {"num_assistant_tokens": 3},
    "a length that changes": {"num_assistant_tokens_schedule": "heuristic"},
    "confidence": {"assistant_confidence_threshold": 0.2},
    "where drafts stop": {"lossy_config": {"k": 2, "stop_drafting": {"by": "entropy"}}},
    "trees": {"lossy_config": {"k": 2, **TREE}},
    "greedy": {"do_sample": False},
    "temperature": {"temperature": 0.7},
    "top_k": {"top_k": 9},
    "top_p": {"top_p": 0.8},
    "rows": {"input_ids": prompt().repeat(2, 1)},
    "a longer prompt": {"input_ids": prompt(40)},
    "a longer text": {"max_new_tokens": 150},
    "a penalty": {"repetition_penalty": 1.2},
    "another draft": {"assistant_model": tiny(seed=6)},
    "prompt lookup": {"assistant_model": None, "prompt_lookup_num_tokens": 3},
}


def drafts(w: World, **options) -> bool:
    return w.call(**options).lossy_stats.plain_after is None


def test_other_settings_are_situations_of_their_own(hasty):
    w = hasty()
    assert [drafts(w, **BASE) for _ in range(3)] == [True, False, False]
    assert {name: drafts(w, **BASE | other) for name, other in SETTINGS.items()} == dict.fromkeys(SETTINGS, True)
    assert not drafts(w, **BASE | {"input_ids": prompt(6, seed=3), "max_new_tokens": 31})


def test_heads_are_told_apart_by_their_weights_and_thresholds(hasty):
    w = hasty()
    head, other = (verifier_head(w.target, w.draft, scale=3.0, seed=seed) for seed in (1, 2))
    base = {"lossy_mode": "sprinter", "lossy_head": head, "lossy_config": {"threshold": 1.0}}
    assert [drafts(w, **base) for _ in range(2)] == [True, False]
    assert not drafts(w, **base | {"lossy_head": copy.deepcopy(head)}), "loaded anew for every call"
    assert drafts(w, **base | {"lossy_config": {"threshold": 0.5}})
    assert drafts(w, **base | {"lossy_head": other})


def test_a_head_s_weights_are_read_once_for_many_calls_and_again_after_a_change(monkeypatch, hasty):
    w, summed = hasty(), []
    monkeypatch.setattr(
        Head, "checksum", property(lambda self: summed.append(1) or self.weight.sum().item().__hash__())
    )
    head = judge_head(w.target, w.draft)
    base = {"lossy_mode": "judge", "lossy_head": head}
    assert [drafts(w, **base) for _ in range(3)] == [True, False, False]
    assert len(summed) == 1
    head.weight += 1
    assert drafts(w, **base)
    assert len(summed) == 2


def test_drafters_of_the_user_are_told_apart_and_need_no_hash(hasty):
    w = hasty()

    class Slow(Repeating):
        def get_candidates(self, input_ids, **kwargs):
            w.now += 9
            return super().get_candidates(input_ids, **kwargs)

    class Unhashable(Slow):
        __hash__ = None

    first, second, third = Slow(3), Slow(4), Unhashable(3)
    users = [{"assistant_model": None, "candidate_generator": x} for x in (first, first, second, second, third, third)]
    assert [drafts(w, **user) for user in users] == [True, False] * 3


LONG = {"max_new_tokens": 60}


def beyond(w: World, out) -> tuple[int, int]:
    """Return by how many forwards of the target the last call had more than its statistics say, and how many."""
    return w.forwards["target"] - out.lossy_stats.target_calls, out.lossy_stats.target_calls


def test_no_forward_measures_in_a_short_call_and_few_do_in_long_ones(world):
    w = world(useless=True)
    w.seconds["draft"] = 0.0
    assert beyond(w, w.call(max_new_tokens=50))[0] == 0
    counted = [beyond(w, w.call(**LONG)) for _ in range(9)]
    assert [extra for extra, _ in counted] == [1, 1, 0, 1, 0, 0, 0, 1, 0]
    assert all(counted >= 50 and extra <= 0.02 * (counted + extra) for extra, counted in counted)
    assert beyond(w, w.call(**LONG, lossy_config={"break_even": False}))[0] == 0


def compiled_in_part():
    target = tiny()
    target.lm_head.compile(backend="eager", dynamic=True)
    return target


NOT_MEASURED = {
    "compiled": lambda: (compiled_in_part(), {}),
    "recurrent": lambda: (family("Qwen3_5"), {}),
    "static": lambda: (tiny("llama"), {"cache_implementation": "static", "lossy_config": {"compile": False}}),
    "processes in step": lambda: (tiny(), {"synced_gpus": True}),
}


@pytest.mark.parametrize("case", NOT_MEASURED)
def test_a_forward_that_could_not_be_forgotten_is_not_run(monkeypatch, world, case: str):
    monkeypatch.setattr(loop, "unfinished", lambda model, done, *_: not done)  # no other process goes on
    target, options = NOT_MEASURED[case]()
    w = world(target, useless=True)
    own = options.pop("lossy_config", {})
    # The first call asks a recurrent model, once, how it goes on from a state.
    found = [
        beyond(w, w.call(**LONG, **options, lossy_config={**own, "break_even": on})) for on in (False, True, False)
    ]
    assert found[1] == found[2]


@pytest.mark.parametrize("architecture", ["llama", "mistral", "gemma3", "gpt2"])
def test_the_forward_that_measures_leaves_no_trace(world, architecture: str):
    w = world(tiny(architecture), useless=True)
    wanted = {"output_hidden_states": True, "output_scores": True, "do_sample": True, "lossy_mode": "dropmatch"}
    found, texts = [], []
    for on in (True, False):
        out = w.call(**LONG, **wanted, lossy_config={"break_even": on})
        assert beyond(w, out)[0] == on
        cache, more = getattr(out, CACHE), out.sequences
        held = [x for layer in cache.layers for x in (layer.keys, layer.values)]
        found.append((torch.rand(3), out.scores, out.hidden_states, held))
        going_on = w.call(input_ids=more, **{CACHE: cache}, max_new_tokens=20, lossy_config={"break_even": False})
        texts.append((shown(out), shown(going_on)))
    assert texts[0] == texts[1]
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_batches_are_measured_where_their_last_rows_end(world):
    w = world(useless=True)
    ends = w.call(**padded(), max_new_tokens=60).sequences[0, 11 + 30].item()
    options = {**padded(), **LONG, "eos_token_id": ends}
    break_even.forget_speeds()
    assert beyond(w, w.call(**options))[0] == 1
    assert shown(w.call(**options)) == shown(w.call(**options, lossy_config={"break_even": False}))


def test_a_forward_over_a_draft_that_takes_longer_makes_calls_plain(world):
    """Drafts of one token take no time, and few are kept; a forward over two tokens takes twice as long as over one."""
    w = world(useless=True)
    w.seconds["draft"] = w.seconds["target"] = 0.0

    def slower(module, args, kwargs, output):
        w.now += (kwargs["input_ids"] if "input_ids" in kwargs else args[0]).shape[1]

    w.target.register_forward_hook(slower, with_kwargs=True)
    plain = [w.call(**LONG, num_assistant_tokens=1).lossy_stats.plain_after for _ in range(7)]
    assert plain == [None] * 6 + [0], "known after the first, the second and the fourth call, and seen three times"


DRAFTERS = {
    "model": lambda t: {"assistant_model": noisy_copy(t)},
    "batch": lambda t: {"assistant_model": noisy_copy(t), **padded()},
    "tree": lambda t: {"assistant_model": noisy_copy(t), "lossy_config": TREE, **padded()},
    "EAGLE-3": lambda t: {"assistant_model": random_head()},
    "prompt lookup": lambda t: {"prompt_lookup_num_tokens": 3, **padded()},
    "early exit": lambda t: {"assistant_early_exit": 1},
    "judge": lambda t: {"assistant_model": (d := noisy_copy(t)), "lossy_mode": "judge", "lossy_head": judge_head(t, d)},
    "sprinter": lambda t: {
        "assistant_model": (d := noisy_copy(t)), "lossy_mode": "sprinter", "lossy_head": verifier_head(t, d)
    },
}  # fmt: skip


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_plain_call_has_the_target_s_text_whatever_would_draft(monkeypatch, drafter: str):
    monkeypatch.setattr(Experience, "plan", Plan.PLAIN)
    target = tiny("llama")
    fields = {"max_new_tokens": 30, "eos_token_id": None, "pad_token_id": 0, "do_sample": False}
    own = {"input_ids": prompt(), "lossy_mode": "lossless", **DRAFTERS[drafter](target)}
    inputs = {name: own[name] for name in ("input_ids", "attention_mask") if name in own}
    out = target.generate(**fields, **own, return_dict_in_generate=True)
    assert out.sequences.tolist() == target.generate(**fields, **inputs).tolist()
    stats = out.lossy_stats
    assert stats.drafted == stats.draft_calls == stats.plain_after == 0
    assert stats.trace == ("bonus",) * stats.tokens
    assert bool(stats.flops) is (drafter == "sprinter")


def test_a_call_waits_for_no_device_before_it_is_over(monkeypatch):
    """Reading the time between two marks waits for all that was queued before the second."""
    over, read = [], []
    finish, between = BreakEven.finish, Stopwatch.between
    monkeypatch.setattr(BreakEven, "finish", lambda self: over.append(1) or finish(self))
    monkeypatch.setattr(Stopwatch, "between", lambda *marks: read.append(len(over)) or between(*marks))
    target = tiny()
    target.generate(prompt(), assistant_model=noisy_copy(target), lossy_mode="lossless", max_new_tokens=30)
    assert set(read) == {1}
