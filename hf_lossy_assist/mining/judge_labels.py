"""Training data for judge heads: labelled mismatches with their hidden states (Garipov et al. 2025, section 3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from transformers import PreTrainedModel

from ..heads.identity import ModelIdentity
from .prompt_results import FAILED, MINED, SKIPPED, Miner, Prompt, PromptResult, Schemas, table_schemas
from .search import Mismatch
from .searches import Searched, Searches
from .self_labels import SelfLabels
from .states import mismatch_states


@dataclass(frozen=True, eq=False)
class JudgeMiner(Miner):
    """Labels the mismatches of prompts, and reads the states at every mismatch.

    ``models`` are read, by role (``"target"``, ``"draft"``); ``positions`` chooses the states of each role from
    :data:`.states.POSITIONS`.
    """

    searches: Searches | SelfLabels
    models: Mapping[str, PreTrainedModel]
    positions: Mapping[str, Sequence[str]]

    def schemas(self) -> Schemas:
        widths = {role: ModelIdentity.of(model).hidden_size for role, model in self.models.items()}
        return judge_schemas({f"{role}_{at}": widths[role] for role in self.models for at in self.positions[role]})

    def outcomes(self, prompts: Iterable[Prompt]) -> Iterator[PromptResult]:
        for searched in self.searches.run(prompts):
            yield self._outcome(searched)

    def _outcome(self, searched: Searched) -> PromptResult:
        found = searched.found
        columns = {
            "answer": found and found.answer,
            "first_response": found and found.first,
            "last_response": found and found.last,
            "mismatches": len(found.mismatches) if found else 0,
            "important": sum(one.important for one in found.mismatches) if found else 0,
            "target_tokens": searched.counts.target_tokens,
            "retokenised": searched.counts.retokenised,
        }
        if found is None:
            error = f"{type(searched.error).__name__}: {searched.error}"
            return PromptResult(searched.prompt, FAILED, columns, error=error)
        if found.answer is None:
            return PromptResult(searched.prompt, SKIPPED, columns, error="the target's response states no answer")
        tokens = self._tokens(searched.prompt, found.last, found.mismatches) if found.mismatches else {}
        return PromptResult(searched.prompt, MINED, columns, tokens)

    def _tokens(self, prompt: Prompt, response: Sequence[int], mismatches: Sequence[Mismatch]) -> dict[str, Any]:
        names = ("index", "target_token", "draft_token", "important")
        columns: dict[str, Any] = {name: [getattr(one, name) for one in mismatches] for name in names}
        for role, model in self.models.items():
            states = mismatch_states(model, prompt.tokens, response, mismatches, self.positions[role])
            for position, values in states.items():
                columns[f"{role}_{position}"] = values.float().cpu().numpy()
        return columns


def judge_schemas(widths: Mapping[str, int]) -> Schemas:
    """Return the tables of AutoJudge's labels with states of these ``widths`` by column, e.g. ``"target_draft"``."""
    ids = pa.list_(pa.int32())
    prompts = {
        "answer": pa.string(),
        "first_response": ids,
        "last_response": ids,
        "mismatches": pa.int32(),
        "important": pa.int32(),
        "target_tokens": pa.int64(),
        "retokenised": pa.int32(),
    }
    tokens = {"index": pa.int32(), "target_token": pa.int32(), "draft_token": pa.int32(), "important": pa.bool_()}
    return table_schemas(prompts, tokens, widths)
