"""The settings of tree drafting."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ..errors import LossyValueError

_MOST = 1024


@dataclass(frozen=True)
class TreeConfig:
    """How trees are drafted: ``tree`` in ``lossy_config``.

    Attributes
    ----------
    depth
        Tokens on the longest path; each takes a forward of the draft.
    top_k
        Nodes to extend at each depth, and continuations of each node.
    nodes
        How many of the likeliest nodes the target verifies. ``"auto"`` chooses the number by measured times.

    Examples
    --------
    >>> TreeConfig(depth=4, nodes=16)
    TreeConfig(depth=4, top_k=8, nodes=16)
    """

    depth: int = 6
    top_k: int = 8
    nodes: int | str = 32

    def __post_init__(self) -> None:
        for x in fields(self):
            value = getattr(self, x.name)
            if x.name == "nodes" and value == "auto":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
                wanted = f"an int >= 1 and <= {_MOST}" + (" or 'auto'" if x.name == "nodes" else "")
                raise LossyValueError(f"`{x.name}` of `tree` in `lossy_config` has to be {wanted}, but is {value!r}")

    @property
    def candidates(self) -> int:
        """How many nodes there are to choose from."""
        return self.top_k + (self.depth - 1) * self.top_k**2
