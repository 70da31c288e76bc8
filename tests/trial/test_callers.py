"""What belongs to the caller: ids that its code keeps, its cache, its streamer, and its last statistics."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import DynamicCache, GenerationMixin
from transformers.generation.candidate_generator import CandidateGenerator
from transformers.generation.streamers import BaseStreamer

from hf_lossy_assist import LossyVerification, disable, enable, last_stats
from hf_lossy_assist.compat.caches import CACHE
from hf_lossy_assist.generation import enabling
from tests.chains import Generating
from tests.tiny_models import noisy_copy, padded, prompt, tiny
from tests.trial.breaking import Failure, Interruption
from tests.trial.calls import Kept, filled

TARGET = tiny()
DRAFT = noisy_copy(TARGET, 0.05)
GREEDY = {"do_sample": False, "eos_token_id": None, "max_new_tokens": 24}
INPUTS = {"one row": {"input_ids": prompt()}, "a batch": padded()}
SEEDED = {**GREEDY, "assistant_model": DRAFT, "lossy_mode": "dropmatch", "lossy_config": {"seed": 0, "dropout": 0.3}}


class KeepingDrafter(CandidateGenerator):
    def __init__(self, kept: Kept) -> None:
        self.drafter = Generating(DRAFT, 4)
        self.kept = kept

    def get_candidates(self, input_ids: torch.Tensor, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        self.kept.keep(input_ids)
        return self.drafter.get_candidates(input_ids)

    def update_candidate_strategy(self, input_ids: torch.Tensor, scores: torch.Tensor, num_matches: int) -> None:
        self.kept.keep(input_ids)


@pytest.mark.parametrize("rows", INPUTS)
def test_drafters_may_keep_ids(rows: str):
    kept = Kept()
    TARGET.generate(**INPUTS[rows], **GREEDY, lossy_mode="topk", candidate_generator=lambda **_: KeepingDrafter(kept))
    assert len(kept.pairs) > 5
    kept.check()


@pytest.mark.parametrize("rows", INPUTS)
def test_ids_of_32_bits(rows: str):
    inputs = INPUTS[rows]
    usual = TARGET.generate(**inputs, **SEEDED)
    short = TARGET.generate(**inputs | {"input_ids": inputs["input_ids"].int()}, **SEEDED)
    assert short.dtype == usual.dtype == torch.int64
    assert torch.equal(short, usual)


def test_ids_of_32_bits_in_stock_s_loop():
    texts = []
    for ids in (prompt(), prompt().int()):
        with LossyVerification("topk", TARGET, assistant_model=DRAFT) as hook:
            texts.append(TARGET.generate(ids, **GREEDY, assistant_model=DRAFT, logits_processor=[hook]))
    assert torch.equal(*texts)


def _failing() -> Callable[[], None]:
    """Return what fails when it is called for the third time."""
    left = [3]

    def call(*_: Any) -> None:
        left[0] -= 1
        if not left[0]:
            raise Failure

    return call


class Showing(BaseStreamer):
    def __init__(self) -> None:
        self.put = _failing()

    def end(self) -> None:
        return


def _processor() -> Callable[..., torch.Tensor]:
    call = _failing()
    return lambda input_ids, scores: call() or scores


BREAKING = {"a processor": lambda: {"logits_processor": [_processor()]}, "a streamer": lambda: {"streamer": Showing()}}


@pytest.mark.parametrize("breaking", BREAKING)
def test_a_call_that_its_own_code_breaks_off_leaves_cache_and_statistics(breaking: str):
    """The cache holds a prefix of the text then, which is all that a broken off plain call leaves of it, too."""
    whole, cache = TARGET.generate(prompt(), **SEEDED), DynamicCache(config=TARGET.config)
    stats = last_stats(TARGET)
    with pytest.raises(Failure):
        TARGET.generate(prompt(), **SEEDED, **{CACHE: cache}, **BREAKING[breaking]())
    assert not any(getattr(layer, "record_past", False) for layer in cache.layers)
    known = filled(TARGET, whole[:, : cache.get_seq_length()])
    torch.testing.assert_close(cache.layers[0].keys, known.layers[0].keys)
    assert last_stats(TARGET) is None, "those of the call before are not its own"
    assert torch.equal(TARGET.generate(prompt(), **SEEDED), whole)
    assert last_stats(TARGET).trace == stats.trace


def test_generating_inside_a_streamer_and_disabling_there():
    """Calls inside a call are calls of their own, and disabling during a call does not end it."""
    alone = TARGET.generate(prompt(), **SEEDED)
    inner: list[Any] = []

    class Nested:
        def put(self, value: torch.Tensor) -> None:
            if len(inner) == 0:
                inner.append(None)
                inner.append(TARGET.generate(prompt(), **SEEDED))
                inner.append(TARGET.generate(prompt(), **GREEDY))
                disable()

        def end(self) -> None:
            inner.append(threading.get_ident())

    outer = TARGET.generate(prompt(), streamer=Nested(), return_dict_in_generate=True, **SEEDED)
    installed = hasattr(GenerationMixin.generate, "_replaced_by_hf_lossy_assist")
    enable()  # the fixture disables once
    assert not installed
    assert outer.sequences.tolist() == inner[1].tolist() == alone.tolist()
    assert set(outer.lossy_stats.accepted_by) == {"dropmatch"}
    assert inner[2].tolist() == tiny().generate(prompt(), **GREEDY).tolist()


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
