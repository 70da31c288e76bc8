"""Prompts to be mined, their results, and the columns of both on disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ..tasks import Example

if TYPE_CHECKING:
    import pyarrow

Ids = tuple[int, ...]
"""The ids of a text's tokens."""

Schemas = Mapping[str, "pyarrow.Schema"]
"""The columns of the tables ``"tokens"`` and ``"prompts"``."""

MINED, SKIPPED, FAILED = "mined", "skipped", "failed"


@dataclass(frozen=True)
class Prompt:
    """A prompt to be mined; ``id`` is its place among the task's examples."""

    id: int
    example: Example
    tokens: Ids


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

    def schemas(self) -> Schemas:
        """Return the tables that the outcomes fit into."""

    def outcomes(self, prompts: Iterable[Prompt]) -> Iterator[PromptResult]:
        """Mine every prompt; yields each as soon as it is finished, whatever the order."""


def table_schemas(prompts: Mapping[str, Any], tokens: Mapping[str, Any], states: Mapping[str, int]) -> Schemas:
    """Return the tables of a kind of mining.

    ``prompts`` and ``tokens`` have the types of the columns that not every kind of mining has; ``states`` has the
    widths of hidden states.
    """
    import pyarrow as pa

    common = {
        "prompt_id": pa.int64(),
        "fold": pa.int32(),
        "status": pa.string(),
        "error": pa.string(),
        "prompt": pa.string(),
        "prompt_tokens": pa.list_(pa.int32()),
    }
    columns = {name: pa.list_(pa.float32(), width) for name, width in states.items()}
    return {
        "prompts": pa.schema({**common, **prompts}),
        "tokens": pa.schema({"prompt_id": pa.int64(), **tokens, **columns}),
    }
