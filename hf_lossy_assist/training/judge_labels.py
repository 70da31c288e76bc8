"""Training data for judge heads: labelled mismatches with their hidden states (Garipov et al. 2025, section 3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import pyarrow as pa
from torch import Tensor
from transformers import PreTrainedModel

from ..heads import ModelIdentity
from ..heads.judge_head import POSITIONS
from ..models.reading import CachedText, read_prompts, read_text, variant_states
from .label_folder import FAILED, MINED, SKIPPED, PromptResult, Schemas, table_schemas
from .search import Mismatch, Searched, Searches
from .self_labels import SelfSearches
from .writing import Prompt


@dataclass(frozen=True, eq=False)
class JudgeMiner:
    """Labels the mismatches of prompts, and reads the states of ``models``, by role, at every mismatch."""

    searches: Searches | SelfSearches
    models: Mapping[str, PreTrainedModel]
    _read: dict[str, CachedText] = field(default_factory=dict)  # the first prompt, by role

    def schemas(self) -> Schemas:
        widths = {role: ModelIdentity.of(model).hidden_size for role, model in self.models.items()}
        return judge_schemas({f"{role}_{position}": width for role, width in widths.items() for position in POSITIONS})

    def outcomes(self, prompts: Iterable[Prompt]) -> Iterator[PromptResult]:
        """Label every prompt, and yield each as soon as it is finished, in any order."""
        for searched in self.searches.run(prompts):
            yield self._outcome(searched)

    def _outcome(self, searched: Searched) -> PromptResult:
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
            return PromptResult(searched.prompt, FAILED, columns, error=error)
        if found.skipped:
            return PromptResult(searched.prompt, SKIPPED, columns, error=found.skipped)
        tokens = self._tokens(searched.prompt, found.last, found.mismatches) if found.mismatches else {}
        return PromptResult(searched.prompt, MINED, columns, tokens)

    def _tokens(self, prompt: Prompt, response: Sequence[int], mismatches: Sequence[Mismatch]) -> dict[str, Any]:
        names = [each.name for each in fields(Mismatch)]
        columns: dict[str, Any] = {name: [getattr(one, name) for one in mismatches] for name in names}
        for role, model in self.models.items():
            if role not in self._read:
                self._read[role] = read_prompts(model, [prompt.tokens])[prompt.tokens]
            known = self._read[role]
            states = mismatch_states(model, prompt.tokens, response, mismatches, known)
            for position, values in states.items():
                columns[f"{role}_{position}"] = values.float().cpu().numpy()
        return columns


def judge_schemas(widths: Mapping[str, int]) -> Schemas:
    """Return the tables of AutoJudge's labels with states of these ``widths`` by column, e.g. ``"target_draft"``."""
    ids = pa.list_(pa.int32())
    prompts = {
        "answer": pa.string(),
        "solved": pa.bool_(),
        "first_response": ids,
        "last_response": ids,
        "mismatches": pa.int32(),
        "important": pa.int32(),
        "target_tokens": pa.int64(),
        "retokenised": pa.int32(),
    }
    tokens = {"index": pa.int32(), "target_token": pa.int32(), "draft_token": pa.int32(), "important": pa.bool_()}
    tokens |= {"weight": pa.float32(), "right": pa.bool_()}
    return table_schemas(prompts, tokens, widths)


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
    text = read_text(model, (*prompt, *response[:end]), (known, shared), end + 1)
    drafted = [(len(prompt) + one.index, one.draft_token) for one in mismatches]
    after = text.states[[place - first for place, _ in drafted]]
    others = [i for i, (place, token) in enumerate(drafted) if text.memory.tokens[place] != token]
    after[others] = variant_states(model, text, [drafted[i] for i in others])
    return {"previous": text.states[[place - 1 - first for place, _ in drafted]], "draft": after}
