"""The folder of labels: a line for each finished prompt, and its labelled tokens beside it, whatever kind they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ..errors import LossyValueError
from ..store.records import Records
from ..values import Checked, Count, Text

if TYPE_CHECKING:
    from .writing import Prompt

MINED, SKIPPED, FAILED = "mined", "skipped", "failed"


@dataclass(frozen=True)
class PromptLabels(Checked):
    """A finished prompt.

    A ``"skipped"`` prompt can't give labels; at a ``"failed"`` one the task raised an error, and it may be tried again.
    ``error`` says more. ``columns`` are entries that only these labels have.
    """

    id: Count
    status: Text
    error: str | None = None
    prompt: Text = ""
    prompt_tokens: tuple[int, ...] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, prompt: Prompt, status: str, columns: Mapping[str, Any] | None = None, error: str | None = None
    ) -> Self:
        return cls(prompt.id, status, error, prompt.example.prompt, prompt.tokens, columns or {})


Labelled = tuple[PromptLabels, Mapping[str, np.ndarray]]
"""A finished prompt, with the columns ``(n, …)`` of its tokens."""


class LabelFolder(Records[PromptLabels]):
    """Finished prompts; the arrays of each are the columns of its labelled tokens."""

    row_type, command, file = PromptLabels, "mine", "prompts.jsonl"
    kinds = {"kind": str, "task": str, "target": (dict, NoneType), "draft": dict, "settings": dict}  # noqa: RUF012


@dataclass(frozen=True, eq=False)
class Mined:
    """The manifest, the prompts and the labelled tokens ``(N, …)`` of a folder, by column; one is ``"prompt_id"``."""

    manifest: Mapping[str, Any]
    tokens: Mapping[str, np.ndarray]
    prompts: list[PromptLabels]

    def __len__(self) -> int:
        return len(self.tokens["prompt_id"])


def load_mined(folder: str | Path) -> Mined:
    """Read what ``lossy-assist mine`` has written so far."""
    found = LabelFolder(Path(folder))
    if not len(found):
        raise LossyValueError(
            f"`folder` has to hold mined prompts, but {str(folder)!r} has none yet; repeat the `mine` command"
        )
    parts = [(row.id, arrays) for row in found if (arrays := found.arrays(row.id))]
    names = [name for name in parts[0][1] if all(name in arrays for _, arrays in parts)] if parts else []
    tokens = {"prompt_id": np.array([id for id, arrays in parts for _ in arrays[names[0]]], dtype=np.int64)}
    for name in names:
        try:
            tokens[name] = np.concatenate([arrays[name] for _, arrays in parts])
        except ValueError as error:
            raise LossyValueError(
                f"`data` has to have as many values in every row, but {name!r} has not; mine again"
            ) from error
    return Mined(found.plan, tokens, [*found])
