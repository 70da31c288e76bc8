"""Training data for judge heads: labelled mismatches with their hidden states (Garipov et al. 2025, section 3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import LossyValueError
from ..models.quantised import quantize_draft
from ..models.reading import CachedText, read_text, remembered, variant_states
from ..values import ONE_OR_MORE, POSITIVE, Rule, or_none
from .choice import DraftArgmax
from .labelling import FAILED, MINED, SKIPPED, Labelled, Labelling, Labels, PromptLabels
from .search import Chosen, Mismatch, Searched, Searches
from .writing import ApiWriter, LocalWriter, Prompt, Writer

_GREEDY_OR_DRAWN = or_none(POSITIVE, "None for greedy text")
_COUNT_OR_ALL = or_none(ONE_OR_MORE, "None for all")
_ROUNDED = Rule("int8, int4 or None", ("int8", "int4", None).__contains__)
_COLUMNS = {
    "index": np.int32, "target_token": np.int32, "draft_token": np.int32, "important": np.bool_, "weight": np.float32,
}  # fmt: skip
"""The columns of a mismatch."""


@dataclass(frozen=True)
class JudgeLabels(Labels):
    """Labels mismatches by whether the answer depends on them (AutoJudge).

    Parameters
    ----------
    temperature
        Responses are drawn at this temperature, by draws that depend on seed and prefix alone; greedy by default.
    mismatches
        About so many mismatches of each prompt are labelled, all by default.
    writer_dtype
        ``"int8"`` or ``"int4"``: a rounded copy of the target writes the responses; the states are its own.
    """

    temperature: Annotated[float | None, _GREEDY_OR_DRAWN] = None
    mismatches: Annotated[int | None, _COUNT_OR_ALL] = None
    writer_dtype: Annotated[str | None, _ROUNDED] = None

    name = "judge"
    free = ("mismatches",)

    def check(self, labelling: Labelling) -> None:
        if labelling.api is None:
            return
        for name in ("temperature", "writer_dtype"):
            if (value := getattr(self, name)) is not None:
                raise LossyValueError(
                    f"`{name}` is {value!r}, but a target behind an API writes its responses greedily; leave it out"
                )

    def miner(self, labelling: Labelling) -> JudgeMiner:
        tokenizer, task, slots = labelling.pair.tokenizer, labelling.pair.task, labelling.batch_size
        if labelling.api is not None:
            writer: Writer = ApiWriter(labelling.api, task, tokenizer, labelling.limits, slots)
        else:
            author = labelling.pair.target
            if self.writer_dtype is not None:
                author = quantize_draft(author, self.writer_dtype)
            writer = LocalWriter(author, labelling.limits, labelling.choice)
        decode = partial(tokenizer.decode, skip_special_tokens=True)
        guesses = DraftArgmax(labelling.pair.draft, labelling.choice)
        searches = Searches(writer, guesses, task, decode, slots, Chosen(self.mismatches, labelling.seed))
        return JudgeMiner(searches, labelling.models)


@dataclass(frozen=True, eq=False)
class JudgeMiner:
    """Labels the mismatches of prompts, and reads the states of ``models``, by role, at every mismatch."""

    searches: Searches
    models: Mapping[str, PreTrainedModel]
    _read: dict[str, CachedText] = field(default_factory=dict)  # the first prompt, by role

    def outcomes(self, prompts: Iterable[Prompt]) -> Iterator[Labelled]:
        """Label every prompt, and yield each as soon as it is finished, in any order."""
        for searched in self.searches.run(prompts):
            yield self._outcome(searched)

    def _outcome(self, searched: Searched) -> Labelled:
        found = searched.found
        columns = {
            "answer": found and found.answer,
            "solved": found and found.solved,
            "first_response": found and found.first,
            "last_response": found and found.last,
            "mismatches": len(found.mismatches) if found else 0,
            "important": sum(one.important for one in found.mismatches) if found else 0,
            "target_tokens": searched.cost.target_tokens,
            "retokenised": searched.cost.retokenised,
        }
        if found is None:
            error = f"{type(searched.error).__name__}: {searched.error}"
            return PromptLabels.of(searched.prompt, FAILED, columns, error), {}
        if found.skipped:
            return PromptLabels.of(searched.prompt, SKIPPED, columns, found.skipped), {}
        tokens = self._tokens(searched.prompt, found.last, found.mismatches) if found.mismatches else {}
        return PromptLabels.of(searched.prompt, MINED, columns), tokens

    def _tokens(self, prompt: Prompt, response: Sequence[int], mismatches: Sequence[Mismatch]) -> dict[str, np.ndarray]:
        columns = {}
        for name, kind in _COLUMNS.items():
            columns[name] = np.array([getattr(one, name) for one in mismatches], dtype=kind)
        for role, model in self.models.items():
            if role not in self._read:
                (self._read[role],) = remembered(model, [prompt.tokens[:-1]])
            states = mismatch_states(model, prompt.tokens, response, mismatches, self._read[role])
            for position, values in states.items():
                columns[f"{role}_{position}"] = values.float().cpu().numpy()
        return columns


def mismatch_states(
    model: PreTrainedModel,
    prompt: Sequence[int],
    response: Sequence[int],
    mismatches: Sequence[Mismatch],
    known: CachedText,
) -> dict[str, Tensor]:
    """Return a model's states ``(N, d)`` at every mismatch, before it and after the draft's token.

    ``response`` is the last one of the search (:attr:`.search.Found.last`). What the prompt has in common with a
    ``known`` text is not read again.
    """
    shared = min(known.common(prompt), len(prompt) - 1)
    first, end = len(prompt) - 1, max((one.index + 1 for one in mismatches), default=0)  # no state after it is wanted
    reading = read_text(model, [(*prompt, *response[:end])], [(known, shared)], last=end + 1, states=True)
    (text,), (states,) = reading.memories, reading.states
    drafted = [(len(prompt) + one.index, one.draft_token) for one in mismatches]
    others = [i for i, (place, token) in enumerate(drafted) if text.tokens[place] != token]
    after = [states[place - first] for place, _ in drafted]
    for i, state in zip(others, variant_states(model, text, [drafted[i] for i in others]), strict=True):
        after[i] = state
    return {"previous": states[[place - 1 - first for place, _ in drafted]], "draft": torch.stack(after)}
