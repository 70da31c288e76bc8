"""Prompts, and the results of labelling them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..store.shards import FAILED as FAILED
from ..tasks import Example

Ids = tuple[int, ...]
"""The ids of a text's tokens."""

MINED, SKIPPED = "mined", "skipped"


@dataclass(frozen=True)
class Prompt:
    """A prompt; ``id`` is its place among the task's examples."""

    id: int
    example: Example
    tokens: Ids


@dataclass(eq=False)
class ResponseCost:
    """The cost of a prompt's labels: the tokens that the target has read.

    ``retokenised`` counts an API's responses whose text is tokenised differently than its parts.
    """

    target_tokens: int = 0
    retokenised: int = 0


@dataclass(frozen=True)
class PromptResult:
    """A finished prompt, as it is stored.

    A ``"skipped"`` prompt can't give labels; at a ``"failed"`` one the task raised an error. ``error`` says more.
    ``columns`` are the entries of its row that only these labels have, ``tokens`` the columns of its labelled tokens.
    """

    prompt: Prompt
    status: str
    columns: Mapping[str, Any]
    tokens: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
