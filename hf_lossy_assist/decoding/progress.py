"""How far a call's texts have come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..stats import StatsRecorder
from .limits import BoundLimits, LosslessPositions
from .stopping import Stopping


@dataclass(frozen=True, eq=False)
class Progress:
    """Where tokens become part of the output: cut where texts end, shown to a streamer, and counted.

    Attributes
    ----------
    stopping
        Where texts end. It may be shared by several runs, which decode a row of it each.
    limits
        Where the output may be lossy.
    stats
        What has been done so far.
    streamer
        Is shown every token; for one row only.
    offset
        The run's first row, as ``stopping`` numbers them.
    """

    stopping: Stopping
    limits: BoundLimits
    stats: StatsRecorder
    streamer: Any = None
    offset: int = 0

    def rooms(self, rows: Sequence[int]) -> list[int]:
        """Return how many more tokens fit into each row's text."""
        return [self.stopping.room(row + self.offset) for row in rows]

    def ended(self, row: int) -> bool:
        """Tell whether a row generates no more."""
        return self.stopping.ended[row + self.offset]

    def generated(self, row: int) -> int:
        """Return how many tokens of a row's text there are."""
        return self.stopping.generated[row + self.offset]

    def commit(
        self,
        rows: Sequence[int],
        tokens: Sequence[list[int]],
        scores: Callable[[int], tuple[Tensor, ...] | None] = lambda count: None,
    ) -> list[int]:
        """Let rows grow by tokens up to where they end; return by how many each has grown."""
        counts = self.stopping.commit([row + self.offset for row in rows], tokens, scores)
        if self.streamer is not None and counts[0]:
            self.streamer.put(torch.tensor([tokens[0][: counts[0]]]))
        return counts

    def lossless_positions(self, candidate: Tensor, drafted: int, rows: Sequence[int]) -> LosslessPositions | None:
        """Say where the last ``drafted`` tokens of ``candidate`` ``(B, L)`` have to be lossless; None for nowhere."""
        if self.limits.limits.everywhere_lossy:
            return None
        counted = [self.stats.rows[row] for row in rows]
        generated, lossy = [row.generated for row in counted], [row.lossy for row in counted]
        return self.limits.lossless_positions(candidate, drafted, generated, lossy)

    def may_be_trusted(self, candidate: Tensor, drafted: int, rows: Sequence[int]) -> Tensor | None:
        """Return ``(B,)`` whether the newest token of ``candidate`` may be lossy, if the drafted ones before it are."""
        positions = self.lossless_positions(candidate, drafted, rows)
        if positions is None:
            return None
        last = torch.full((len(candidate),), drafted - 1, device=candidate.device)
        return ~positions.after(last).forbids_lossy[:, 0]
