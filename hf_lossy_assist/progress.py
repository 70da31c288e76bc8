"""Progress of long work, on terminals only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from .store.folder import this_process

Item = TypeVar("Item")


def track(items: Iterable[Item], *, total: int | None = None, what: str) -> Iterator[Item]:
    """Yield the items, and meanwhile show on standard error how many came, of how many, and the time that is left.

    Nothing is shown where standard error is no terminal, nor by any process but the first.

    Examples
    --------
    >>> [*track(range(3), what="counting")]
    [0, 1, 2]
    """
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    screen = Console(stderr=True)
    shown = (screen.is_terminal or screen.is_jupyter) and this_process().number == 0
    columns = *Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=screen, transient=True, disable=not shown) as bar:
        yield from bar.track(items, total=total, description=what)
