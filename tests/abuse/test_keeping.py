"""Tensors given to the caller's own code do not change afterwards, and ids may be of any integer type."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LogitsProcessor, StoppingCriteria
from transformers.generation.candidate_generator import CandidateGenerator

from hf_lossy_assist import LossyVerification, enabled
from hf_lossy_assist.drafting.model import ModelDrafter
from tests.tiny_models import noisy_copy, padded, prompt, tiny

TARGET = tiny()
DRAFT = noisy_copy(TARGET, 0.05)
GREEDY = {"do_sample": False, "eos_token_id": None, "max_new_tokens": 24}
INPUTS = {"one row": {"input_ids": prompt()}, "a batch": padded()}


class Kept:
    """Tensors beside copies that were made when they came."""

    def __init__(self) -> None:
        self.pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def keep(self, ids: torch.Tensor) -> None:
        self.pairs.append((ids, ids.clone()))

    def check(self) -> None:
        assert len(self.pairs) > 5
        assert all(torch.equal(*pair) for pair in self.pairs)


class KeepingProcessor(LogitsProcessor, Kept):
    def __deepcopy__(self, memo: dict) -> KeepingProcessor:
        return self  # what it keeps changes no result, and the test looks at it

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.keep(input_ids)
        return scores


class KeepingCriterion(StoppingCriteria, Kept):
    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.keep(input_ids)
        return torch.zeros(len(input_ids), dtype=torch.bool)


class KeepingDrafter(CandidateGenerator):
    def __init__(self, kept: Kept) -> None:
        self.drafter = ModelDrafter(DRAFT, 4)
        self.kept = kept

    def get_candidates(self, input_ids: torch.Tensor, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        self.kept.keep(input_ids)
        return self.drafter.get_candidates(input_ids)

    def update_candidate_strategy(self, input_ids: torch.Tensor, scores: torch.Tensor, num_matches: int) -> None:
        self.kept.keep(input_ids)


@pytest.mark.parametrize("rows", INPUTS)
def test_processors_and_criteria_may_keep_ids(rows: str):
    processor, criterion = KeepingProcessor(), KeepingCriterion()
    with enabled(TARGET):
        TARGET.generate(
            **INPUTS[rows], **GREEDY, assistant_model=DRAFT, lossy_mode="topk", logits_processor=[processor],
            stopping_criteria=[criterion],
        )  # fmt: skip
    processor.check()
    criterion.check()


@pytest.mark.parametrize("rows", INPUTS)
def test_drafters_may_keep_ids(rows: str):
    kept = Kept()
    with enabled(TARGET):
        TARGET.generate(
            **INPUTS[rows], **GREEDY, lossy_mode="topk", candidate_generator=lambda **call: KeepingDrafter(kept)
        )
    kept.check()


class NoRepeatedPair(LogitsProcessor):
    """Forbids pairs of tokens that were there before; goes on from what it has seen of the same text."""

    def __init__(self) -> None:
        self.text = torch.empty(0, dtype=torch.long)
        self.after: list[tuple[int, int]] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        ids, shortest = input_ids[0], min(len(input_ids[0]), len(self.text))
        differs = (ids[:shortest] != self.text[:shortest]).nonzero()
        same = int(differs[0]) if len(differs) else shortest
        del self.after[max(0, same - 1) :]
        self.after += [tuple(ids[i : i + 2].tolist()) for i in range(len(self.after), len(ids) - 1)]
        self.text = ids
        for first, second in self.after:
            if first == int(ids[-1]):
                scores[:, second] = -torch.inf
        return scores


def test_a_processor_that_goes_on_from_what_it_has_seen():
    plain = TARGET.generate(prompt(), **GREEDY, logits_processor=[NoRepeatedPair()])
    with enabled(TARGET):
        ours = TARGET.generate(
            prompt(), **GREEDY, logits_processor=[NoRepeatedPair()], assistant_model=DRAFT, lossy_mode="lossless"
        )
    assert torch.equal(ours, plain)


@pytest.mark.parametrize("rows", INPUTS)
@pytest.mark.parametrize("mode", ["lossless", "topk", "dropmatch", "fly"])
def test_ids_of_32_bits(mode: str, rows: str):
    inputs, kwargs = INPUTS[rows], {**GREEDY, "assistant_model": DRAFT, "lossy_mode": mode, "lossy_config": {"seed": 0}}
    with enabled(TARGET):
        usual = TARGET.generate(**inputs, **kwargs)
        short = TARGET.generate(**inputs | {"input_ids": inputs["input_ids"].int()}, **kwargs)
    assert short.dtype == usual.dtype == torch.int64
    assert torch.equal(short, usual)


def test_ids_of_32_bits_in_stock_s_loop():
    texts = []
    for ids in (prompt(), prompt().int()):
        with LossyVerification("topk", TARGET, assistant_model=DRAFT) as hook:
            texts.append(TARGET.generate(ids, **GREEDY, assistant_model=DRAFT, logits_processor=[hook]))
    assert torch.equal(*texts)
