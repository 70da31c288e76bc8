"""Chooses how the forwards of a call run: one by one, on a static cache, as recorded graphs, or compiled."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

LEAST_TOKENS = 32
"""Fewer new tokens don't pay for recording graphs: on an H200 it takes what graphs save in ten rounds of γ = 4."""
MOST_SLOTS = 16_384
"""Beyond so many slots, of all rows together, reading a static cache's empty ones costs what graphs save."""


class Path(Enum):
    """How forwards run."""

    DYNAMIC = "one by one"
    STATIC = "one by one, on a static cache"
    GRAPHS = "as recorded graphs, on a static cache"
    COMPILED = "compiled, on a static cache"


def choose_path(
    device: str,
    wanted: bool | None,
    *,
    static: bool = False,
    by_itself: bool = False,
    disabled: bool = False,
    tokens: int = 0,
    slots: int = 0,
    recording: Collection[str] = ("cuda",),
) -> Path:
    """Return how a call's forwards run on a type of ``device``.

    ``wanted`` is the user's ``compile``, ``static`` whether there is a static cache, and ``by_itself`` whether
    ``generate()`` would then compile; ``disabled`` is its ``disable_compile``. The call may add ``tokens`` to each
    text, and needs so many ``slots`` of a cache. Graphs are recorded on the types of device ``recording``.

    Examples
    --------
    >>> choose_path("cuda", None, tokens=200, slots=512).value
    'as recorded graphs, on a static cache'
    >>> choose_path("cpu", None, tokens=200, slots=512).value
    'one by one'
    """
    if wanted or (wanted is None and static and by_itself):
        return Path.COMPILED
    if static:
        return Path.STATIC
    pays = tokens >= LEAST_TOKENS and slots <= MOST_SLOTS
    return Path.GRAPHS if wanted is None and pays and not disabled and device in recording else Path.DYNAMIC
