"""Whatever breaks off a call, and wherever: nothing is left behind, and the next call works."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from transformers import GenerationMixin, LogitsProcessorList, StoppingCriteriaList
from transformers.generation.candidate_generator import CandidateGenerator

from hf_lossy_assist import LossyVerification, enabling, last_stats
from hf_lossy_assist.compat import CACHE
from hf_lossy_assist.drafting.model import ModelDrafter
from tests.abuse.broken_off import Interruption, state_of
from tests.acceptors.fixtures import verifier_head as head_for
from tests.acceptors.table import judge_head
from tests.tiny_models import noisy_copy, prompt, tiny

KWARGS = {"max_new_tokens": 24, "eos_token_id": None, "do_sample": False}
MODES = {
    "lossless": {},
    "dropmatch": {"lossy_config": {"seed": 0}},
    "judge": {"lossy_head": judge_head},
    "sprinter": {"lossy_head": head_for},
    "ears": {"do_sample": True, "lossy_config": {"seed": 0}},
}


class Boom(Exception):
    pass


class Fuse:
    """Raises at the n-th call."""

    def __init__(self, error: type[BaseException], left: int) -> None:
        self.error = error
        self.left = left

    def __call__(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error


class Streamer:
    def __init__(self, fuse: Fuse) -> None:
        self.fuse = fuse

    def put(self, value: torch.Tensor) -> None:
        self.fuse()

    def end(self) -> None:
        self.fuse()


class Drafter(CandidateGenerator):
    def __init__(self, fuse: Fuse, drafter: ModelDrafter) -> None:
        self.fuse, self.drafter = fuse, drafter

    def get_candidates(self, input_ids: torch.Tensor, **kwargs: Any) -> Any:
        self.fuse()
        return self.drafter.get_candidates(input_ids, **kwargs)

    def update_candidate_strategy(self, *args: Any) -> None:
        self.fuse()
        self.drafter.update_candidate_strategy(*args)


@contextmanager
def during_forward(model: Any, fuse: Fuse) -> Iterator[None]:
    """The hook sits deep in the model, behind ours at its entrance and its head."""
    handle = model.model.layers[-1].register_forward_hook(lambda *_: fuse())
    try:
        yield
    finally:
        handle.remove()


def after(fuse: Fuse, value: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def call(input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        fuse()
        return value(input_ids, scores)

    return call


def never(input_ids: torch.Tensor, scores: Any) -> torch.Tensor:
    return torch.zeros(len(input_ids), dtype=torch.bool)


@contextmanager
def planted(place: str, fuse: Fuse, target: Any, draft: Any) -> Iterator[dict[str, Any]]:
    """Let something break at one place of a call."""
    if place in ("target", "draft"):
        with during_forward({"target": target, "draft": draft}[place], fuse):
            yield {}
    elif place == "drafter":
        yield {"candidate_generator": Drafter(fuse, ModelDrafter(draft, 4)), "assistant_model": None}
    elif place == "streamer":
        yield {"streamer": Streamer(fuse)}
    elif place == "criterion":
        yield {"stopping_criteria": StoppingCriteriaList([after(fuse, never)])}
    else:
        yield {"logits_processor": LogitsProcessorList([after(fuse, lambda ids, scores: scores)])}


def fields_of(mode: str, target: Any, draft: Any) -> dict[str, Any]:
    fields = {"lossy_mode": mode, **KWARGS, **MODES[mode]}
    if "lossy_head" in fields:
        fields["lossy_head"] = fields["lossy_head"](target, draft)
    return fields


# Models are broken off under every rule; what belongs to the caller, where the LM head has hooks and where it has none.
@pytest.mark.parametrize(
    ("mode", "place"),
    [
        *itertools.product(MODES, ["target", "draft"]),
        *itertools.product(["lossless", "dropmatch"], ["processor", "streamer", "criterion"]),
        ("lossless", "drafter"),
    ],
)
def test_a_broken_off_call_leaves_nothing_behind(mode: str, place: str):
    target = tiny("llama")
    draft = noisy_copy(target)
    fields = fields_of(mode, target, draft)

    def call(**more: Any) -> torch.Tensor:
        torch.manual_seed(0)
        return target.generate(prompt(), **({"assistant_model": draft} | fields | more))

    whole = call()
    stats = last_stats(target)
    before = state_of(target, draft)
    for left, error in ((1, Boom), (2, KeyboardInterrupt), (7, Boom)):
        with planted(place, Fuse(error, left), target, draft) as more, pytest.raises(error):
            call(**more)
        assert state_of(target, draft) == before
        assert last_stats(target) is stats, "the last call that was completed"
    assert call().tolist() == whole.tolist()
    assert last_stats(target) is not stats
    assert last_stats(target).trace == stats.trace


@pytest.mark.parametrize(
    ("mode", "place"),
    [
        *itertools.product(["topk", "dropmatch"], ["processor", "streamer", "criterion", "target", "draft"]),
        *itertools.product(["judge"], ["target", "draft"]),
    ],
)
def test_the_same_in_stock_s_loop(mode: str, place: str):
    target = tiny("llama")
    draft = noisy_copy(target)
    before = state_of(target, draft)
    head = judge_head(target, draft) if mode == "judge" else None
    hook = LossyVerification(mode, target, assistant_model=draft, lossy_head=head, seed=0)

    def call(more: dict[str, Any]) -> torch.Tensor:
        others = list(more.pop("logits_processor", []))
        with hook:
            return target.generate(prompt(), assistant_model=draft, logits_processor=[*others, hook], **KWARGS, **more)

    whole = call({})
    assert state_of(target, draft) == before
    for left, error in ((1, KeyboardInterrupt), (4, Boom)):
        with planted(place, Fuse(error, left), target, draft) as more, pytest.raises(error):
            call(more)
        assert state_of(target, draft) == before
    assert call({}).tolist() == whole.tolist()


def test_an_interrupt_between_two_steps_of_our_own_loop(monkeypatch: pytest.MonkeyPatch):
    """A signal can arrive anywhere, so also where no code of others runs."""
    from hf_lossy_assist.decoding.loop import Decoding
    from hf_lossy_assist.decoding.progress import Progress
    from hf_lossy_assist.models.target import Target

    target = tiny("llama")
    draft = noisy_copy(target)
    before = state_of(target, draft)
    stages = [(Decoding, name) for name in ("draft", "verify", "accept", "commit", "finish")]
    for owner, stage in (*stages, (Target, "keep"), (Progress, "lossless_positions")):
        with monkeypatch.context() as patch:
            fuse, original = Fuse(KeyboardInterrupt, 1), getattr(owner, stage)

            def broken(self: Any, *args: Any, fuse: Fuse = fuse, original: Any = original, **kwargs: Any) -> Any:
                out = original(self, *args, **kwargs)
                fuse()
                return out

            patch.setattr(owner, stage, broken)
            fields = fields_of("dropmatch", target, draft)
            fields["lossy_config"] = {**fields["lossy_config"], "strict_first_n": 2}  # without limits nobody asks
            with pytest.raises(KeyboardInterrupt):
                target.generate(prompt(), assistant_model=draft, **fields)
        assert state_of(target, draft) == before
        assert last_stats(target) is None


def test_a_cache_of_the_caller_s_survives():
    """It holds a prefix of the text afterwards, which is all that a broken off plain call leaves of it, too."""
    from transformers import DynamicCache

    target = tiny("llama")
    draft = noisy_copy(target)
    cache = DynamicCache(config=target.config)
    fuse = Fuse(Boom, 3)
    with during_forward(target, fuse), pytest.raises(Boom):
        target.generate(prompt(), assistant_model=draft, **{CACHE: cache}, **fields_of("lossless", target, draft))
    assert not any(getattr(layer, "record_past", False) for layer in cache.layers)


def test_generating_inside_a_streamer_and_disabling_there():
    """Calls inside a call are calls of their own, and disabling during a call does not end it."""
    from hf_lossy_assist import disable, enable

    target = tiny("llama")
    draft = noisy_copy(target)
    fields = fields_of("dropmatch", target, draft)
    alone = target.generate(prompt(), assistant_model=draft, **fields)
    inner: list[Any] = []

    class Nested:
        def put(self, value: torch.Tensor) -> None:
            if len(inner) == 0:
                inner.append(None)
                inner.append(target.generate(prompt(), assistant_model=draft, **fields))
                inner.append(target.generate(prompt(), **KWARGS))
                disable()

        def end(self) -> None:
            inner.append(threading.get_ident())

    outer = target.generate(prompt(), assistant_model=draft, streamer=Nested(), return_dict_in_generate=True, **fields)
    installed = hasattr(GenerationMixin.generate, "_replaced_by_hf_lossy_assist")
    enable()  # the fixture disables once
    assert not installed
    assert outer.sequences.tolist() == inner[1].tolist() == alone.tolist()
    assert set(outer.lossy_stats.accepted_by) == {"dropmatch"}
    assert inner[2].tolist() == tiny("llama").generate(prompt(), **KWARGS).tolist()


def test_no_call_counts_as_running_for_ever():
    """Broken off at any moment while a call begins or ends: who disables has the plain method back."""

    def call() -> None:
        with enabling._in_use():
            pass

    counting = Interruption()
    counting.during(call)
    broken_off = [Interruption(moment).during(call) for moment in range(1, counting.moments + 1)]
    assert sum(broken_off) > 5
    assert not enabling._running
