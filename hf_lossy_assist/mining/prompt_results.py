"""Prompts, the results of mining them, and the columns of both on disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from ..store.shards import FAILED as FAILED
from ..tasks import Example

Ids = tuple[int, ...]
"""The ids of a text's tokens."""

Schemas = Mapping[str, pa.Schema]
"""The columns of the tables ``"tokens"`` and ``"prompts"``."""

MINED, SKIPPED = "mined", "skipped"


@dataclass(frozen=True)
class Prompt:
    """A prompt; ``id`` is its place among the task's examples."""

    id: int
    example: Example
    tokens: Ids


@dataclass(eq=False)
class ResponseCost:
    """The cost of mining one prompt: the tokens that the target has read.

    ``retokenised`` counts an API's responses whose text is tokenised differently than its parts.
    """

    target_tokens: int = 0
    retokenised: int = 0


@dataclass(frozen=True)
class PromptResult:
    """A finished prompt, as it is stored.

    A ``"skipped"`` prompt can't give labels; at a ``"failed"`` one the task raised an error. ``error`` says more.
    ``columns`` are the entries of its row that only this kind of mining has, ``tokens`` the columns of its labelled
    tokens.
    """

    prompt: Prompt
    status: str
    columns: Mapping[str, Any]
    tokens: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


class Miner(Protocol):
    """A kind of mining."""

    def schemas(self) -> Schemas: ...

    def outcomes(self, prompts: Iterable[Prompt]) -> Iterator[PromptResult]:
        """Mine every prompt, and yield each as soon as it is finished, in any order."""


def table_schemas(prompts: Mapping[str, Any], tokens: Mapping[str, Any], states: Mapping[str, int]) -> Schemas:
    """Return the tables of a kind of mining, given the types of its own columns and the widths of its states."""
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
