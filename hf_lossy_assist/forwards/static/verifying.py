"""Verification in a forward of fixed shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...verification.verifier import Verifier
from .forwards import Steps


@dataclass(eq=False, kw_only=True)
class StaticVerifier(Verifier):
    """Runs the target over drafts on a static cache.

    Attributes
    ----------
    steps
        The target's forwards.
    """

    steps: Steps

    def prepare(
        self, candidate: Tensor, drafted: int, model_kwargs: dict[str, Any], new_tokens: int | None, **context: Any
    ) -> tuple[Callable[..., Any], dict[str, Any]]:
        new = candidate.shape[1] if new_tokens is None else new_tokens + drafted
        return self.steps.prepare(candidate, candidate.shape[1] - new, drafted + 1)
