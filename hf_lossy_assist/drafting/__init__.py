"""Drafters propose tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor
from transformers import PreTrainedModel

from ..core.messages import Commit, Draft
from ..core.recorders import StatsRecorder
from ..core.texts import Texts


class Drafter(ABC):
    """Proposes tokens for the rows of a batch."""

    @abstractmethod
    def propose(self, ids: Tensor, layout: Texts, remaining: Sequence[int]) -> Draft:
        """Propose tokens.

        Parameters
        ----------
        ids
            ``(B, W)`` the texts, which all end in the last column.
        layout
            Where the rows stand.
        remaining
            How many more tokens fit into each text, the target's own token included.
        """

    def forget(self, ids: Tensor) -> None:
        """Forget what was drafted after ``ids`` ``(B, W)``."""
        return

    def observe(self, commit: Commit) -> None:
        """Learn from a round, and follow its rows."""
        return

    def in_use(self) -> AbstractContextManager[None]:
        """Drafts are asked for inside this block only."""
        return nullcontext()

    def flops(self, target: PreTrainedModel, length: int, stats: StatsRecorder) -> Mapping[str, float]:
        """Count the floating-point operations of a whole run over texts of ``length``; empty where that is unknown."""
        return {}
