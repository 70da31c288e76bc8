"""The target's answers, and what both models say along them, in memory or in a folder."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor
from transformers import LogitsProcessorList

from ...drafting.lookup_first import price_of
from ...store.folder import write_whole
from ..answers import AnswerStore
from ..evaluation import Evaluation, Track
from ..modes import Models
from ..requests import PromptBatch
from .lookup_first import Continuations, LookupFirstLogits, chances_of
from .text_drafts import read_drafts
from .text_logits import LIKELIEST, TextLogits, processors_of, read_logits

Tensors = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class AnswerTexts:
    """Answers of the target, which are made and read when they are asked for."""

    evaluation: Evaluation  # of the target alone
    by_position: bool  # whether the draft's law at a position does not depend on where a draft began
    longest: int  # the most tokens of a draft; where laws depend on its beginning, they are read for so many
    out: Path | None  # a folder that keeps what was read
    track: Track

    @property
    def models(self) -> Models:
        return self.evaluation.models

    @cached_property
    def batches(self) -> list[PromptBatch]:
        return replace(self.evaluation, batch_size=1).batches  # one prompt each

    @property
    def decoding(self) -> dict[str, Any]:
        """Keywords of ``generate()`` that say how tokens are chosen."""
        keywords = self.evaluation.modes[0].keywords(self.models, 0)
        return {name: keywords[name] for name in ("do_sample", "temperature", "top_k", "top_p") if name in keywords}

    @cached_property
    def read(self) -> list[Tensors]:
        """What both models say along the target's answer to each prompt."""
        evaluation = self.evaluation
        store = AnswerStore() if self.out is None else AnswerStore(self.out, evaluation.plan())
        answered = self.track(evaluation.run(store), total=len(self.batches), description="answering")
        return [
            self._read(batch.ids[0].tolist(), evaluation.tokens_of(answers[evaluation.reference]))
            for batch, answers in zip(self.batches, answered, strict=True)
        ]

    def laws(self, *, looked_up: bool) -> TextLogits | LookupFirstLogits:
        """Return the laws of both models, also those of what is ``looked_up`` before the draft."""
        drafted = TextLogits.of(self.read, self.evaluation.length)
        if not looked_up:
            return drafted
        price = price_of(self.models.draft, self.models.target)
        return LookupFirstLogits.of(drafted, self._repeats(), price, self.models.drafts_at_once)

    def _read(self, prompt: list[int], answer: list[int]) -> Tensors:
        def read() -> Tensors:
            if self.by_position:
                laws = read_logits(self.models.target, self.models.draft, prompt, answer, self.processors(prompt))
            else:
                drafting = {"assistant_model": self.models.draft, "num_assistant_tokens": self.longest}
                if self.models.only_looks_up:
                    drafting = {"prompt_lookup_num_tokens": self.longest}
                laws = self._read_drafts(prompt, answer, drafting, self.longest)
            return {"ids": torch.tensor([*prompt, *answer]), **laws}

        name = "logits" if self.by_position else f"{self.longest}-logits"
        return self._stored(prompt, [*prompt, *answer], name, read)

    def _repeats(self) -> list[Tensors]:
        """Return what is looked up along the answers."""
        count = self.models.lookup

        def read(prompt: list[int], ids: list[int]) -> Tensors:
            answer = ids[len(prompt) :]
            drafting = {"candidate_generator": Continuations(count), "num_assistant_tokens": count}
            return self._read_drafts(prompt, answer, drafting, count) | {"chances": chances_of(prompt, answer)}

        return self.about(f"{count}-repeats", read)

    def about(
        self, name: str, make: Callable[[list[int], list[int]], Tensors], track: Callable[[Any], Any] = iter
    ) -> list[Tensors]:
        """Return what the folder has about each text under a ``name``; ``make`` makes it of a prompt and its text."""
        read = zip(self.batches, self.read, strict=True)
        texts = [(batch.ids[0].tolist(), text["ids"].tolist()) for batch, text in read]
        return [self._stored(*text, name, partial(make, *text)) for text in track(texts)]

    def _read_drafts(self, prompt: list[int], answer: list[int], drafting: dict[str, Any], steps: int) -> Tensors:
        return read_drafts(self.models.target, drafting, prompt, answer, steps, self.decoding)

    def processors(self, prompt: Sequence[int]) -> LogitsProcessorList:
        return processors_of(self.models.target, prompt, **self.decoding)

    def _stored(self, prompt: list[int], ids: list[int], name: str, make: Callable[[], Tensors]) -> Tensors:
        """Return what the folder has about a text, or make it and write it there."""
        if self.out is None:
            return make()
        read = zlib.crc32(json.dumps([prompt, ids, self.decoding, LIKELIEST]).encode())
        path = self.out / f"{read:08x}-{name}.safetensors"
        try:
            return load(path.read_bytes())
        except (OSError, SafetensorError):  # missing or damaged
            write_whole(path, save(found := make()))
            return found
