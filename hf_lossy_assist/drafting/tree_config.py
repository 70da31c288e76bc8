"""The settings of tree drafting."""

from __future__ import annotations

import operator
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import ClassVar

from ..errors import LossyValueError
from ..values import SETTINGS, bounded

_MOST = 1024
_FORM = "numbers of children, e.g. [4, 2, 1] or '4x2x1'"


@dataclass(frozen=True)
class TreeConfig:
    """How trees are drafted: ``tree`` in ``lossy_config``."""

    drawn: ClassVar[bool] = False  # whether nodes are drawn, not chosen
    depth: int = 6  # tokens on the longest path; each takes a forward of the draft
    top_k: int = 8  # nodes to extend at each depth, and continuations of each node
    nodes: int | str = 32  # how many of the likeliest nodes the target verifies; "auto" goes by their probability

    def __post_init__(self) -> None:
        for x in fields(self):
            size = bounded(1, _MOST, integer=True, word="auto" if x.name == "nodes" else None)
            size.check(x.name, getattr(self, x.name), f" of `tree`{SETTINGS}")

    @property
    def candidates(self) -> int:
        """How many nodes there are to choose from."""
        return self.top_k + (self.depth - 1) * self.top_k**2


@dataclass(frozen=True)
class DrawnTreeConfig:
    """How trees are drawn: ``tree`` in ``lossy_config`` with ``branches``, written ``[4, 2, 1]`` or ``"4x2x1"``.

    Examples
    --------
    >>> DrawnTreeConfig("4x2x1").nodes
    20
    """

    drawn: ClassVar[bool] = True
    branches: tuple[int, ...]  # how many children a node of each depth has; the text's newest token comes first

    def __post_init__(self) -> None:
        given = self.branches
        numbers = given.split("x") if isinstance(given, str) else given
        try:
            branches = tuple(int(str(number)) for number in numbers)  # not int(True) or int(1.5)
        except (TypeError, ValueError):
            branches = ()
        object.__setattr__(self, "branches", branches)
        if not branches or min(branches) < 1 or self.nodes > _MOST:
            raise LossyValueError(
                f"`branches` of `tree` in `lossy_config` has to be {_FORM}, of at most {_MOST} nodes, but is {given!r}"
            )

    @property
    def depth(self) -> int:
        return len(self.branches)

    @property
    def nodes(self) -> int:
        return sum(accumulate(self.branches, operator.mul))

    @property
    def top_k(self) -> int:
        """The largest number of nodes that one forward of the draft reads."""
        return max(accumulate(self.branches, operator.mul))
