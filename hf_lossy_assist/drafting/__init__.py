"""Drafters: what proposes tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from torch import Tensor
from transformers import PreTrainedModel

from ..commit import Commit
from ..messages import Draft

if TYPE_CHECKING:
    from ..decoding.batch_layout import BatchLayout
    from ..decoding.recorders import StatsRecorder


class Drafter(ABC):
    """Proposes tokens for the rows of a batch.

    Attributes
    ----------
    drafts_every_round
        Whether it has to be asked in every round, because it follows what the target does.
    """

    drafts_every_round = False

    @abstractmethod
    def propose(self, ids: Tensor, layout: BatchLayout, rooms: Sequence[int]) -> Draft:
        """Propose tokens.

        Parameters
        ----------
        ids
            ``(B, W)`` the texts, which all end in the last column.
        layout
            Where the rows stand.
        rooms
            How many more tokens fit into each text, that of the target included.
        """

    def observe(self, commit: Commit) -> None:
        """Learn from a round, and follow its rows."""
        return

    def in_use(self) -> AbstractContextManager[None]:
        """Inside the block, drafts are asked for."""
        return nullcontext()

    def flops(self, target: PreTrainedModel, length: int, stats: StatsRecorder) -> Mapping[str, float]:
        """Count the floating-point operations of a whole run over texts of a length, for drafters that can."""
        return {}
