"""Prompts to be mined, what was mined of them, and the columns that both are stored in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ..tasks import Example

if TYPE_CHECKING:
    import pyarrow

MINED, SKIPPED, FAILED = "mined", "skipped", "failed"


@dataclass(frozen=True)
class Prompt:
    """A prompt to be mined; ``id`` is its place among the task's examples."""

    id: int
    example: Example
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class PromptResult:
    """A finished prompt, as it is stored.

    A ``"skipped"`` one can give no labels, and at a ``"failed"`` one the task raised an error; ``error`` says more.
    ``columns`` are those of its row beside the ones that every kind of mining has, ``tokens`` the columns of its
    labelled tokens, without the prompt's id.
    """

    prompt: Prompt
    status: str
    columns: Mapping[str, Any]
    tokens: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


class Miner(Protocol):
    """The interface of a kind of mining."""

    def schemas(self) -> Mapping[str, pyarrow.Schema]:
        """Return the tables that the outcomes fit into."""

    def outcomes(self, prompts: Iterable[Prompt]) -> Iterator[PromptResult]:
        """Mine every prompt; yields each as soon as it is finished, whatever the order."""


def prompt_schema(more: Mapping[str, pyarrow.DataType]) -> pyarrow.Schema:
    """Return the table of prompts: the columns that every kind of mining has, and more."""
    import pyarrow as pa

    return pa.schema(
        {
            "prompt_id": pa.int64(),
            "fold": pa.int32(),
            "status": pa.string(),
            "error": pa.string(),
            "prompt": pa.string(),
            "prompt_tokens": pa.list_(pa.int32()),
            **more,
        }
    )


def state_fields(widths: Mapping[str, int]) -> Iterable[tuple[str, pyarrow.DataType]]:
    """Return the columns of hidden states of the given names and widths."""
    import pyarrow as pa

    return {name: pa.list_(pa.float32(), width) for name, width in widths.items()}
