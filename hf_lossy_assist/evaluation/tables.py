"""Tables of numbers for the screen, and numbers in words."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

Column = Callable[[Any], str]


@dataclass(frozen=True)
class NumberTable:
    """Labelled rows of numbers, as wide as the screen, with every number whole.

    Where the screen is too narrow, intervals go below their numbers; where it still is, columns go into a second table.
    """

    title: str | None
    names: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]

    def __rich_console__(self, screen: Console, options: ConsoleOptions) -> RenderResult:
        if self._fits(screen, options):
            yield self._laid_out()
            return
        cells = tuple((label, *(number.replace(" (", "\n(") for number in numbers)) for label, *numbers in self.cells)
        yield from replace(self, cells=cells)._parts(screen, options)

    def _parts(self, screen: Console, options: ConsoleOptions) -> RenderResult:
        """Lay out as many columns as fit, then the others."""
        size = len(self.names)
        while size > 2 and not self._part(0, size)._fits(screen, options):
            size -= 1
        yield self._part(0, size)._laid_out()
        if size < len(self.names):
            yield from replace(self._part(size, None), title=None)._parts(screen, options)

    def _part(self, start: int, stop: int | None) -> NumberTable:
        """Return the labels with some of the columns."""
        first, *others = ((row[0], *row[max(1, start) : stop]) for row in (self.names, *self.cells))
        return replace(self, names=first, cells=tuple(others))

    def _fits(self, screen: Console, options: ConsoleOptions) -> bool:
        least = min(14, max((len(row[0]) for row in self.cells), default=0))
        narrowest = screen.measure(self._laid_out(least), options=options.update(max_width=_ANY_WIDTH))
        return narrowest.maximum <= options.max_width

    def _laid_out(self, width: int | None = None) -> Table:
        """Return the table; ``width`` is that of the labels, by default what the numbers leave."""
        laid_out = Table(title=self.title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        first, *numbers = self.names
        laid_out.add_column(first, overflow="fold", width=width)
        for name in numbers:
            laid_out.add_column(name, justify="right", no_wrap=True)
        for row in self.cells:
            laid_out.add_row(*row)
        return laid_out


_ANY_WIDTH = 10_000


def table(rows: Iterable[Any], columns: Mapping[str, Column], title: str) -> NumberTable:
    """Lay out rows in named columns: the first one folds its text, the others hold numbers."""
    return NumberTable(title, tuple(columns), tuple(tuple(column(row) for column in columns.values()) for row in rows))


def as_text(laid_out: NumberTable) -> str:
    screen = Console(file=io.StringIO(), width=100, color_system=None)
    screen.print(laid_out)
    return "\n".join(line.rstrip() for line in screen.file.getvalue().splitlines()).strip("\n")


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def percent(share: float | None, digits: int = 0) -> str:
    return "" if share is None else f"{100 * share:.{digits}f}"


def figure(value: float) -> str:
    """Return a number with four digits, or with all digits before the point.

    Examples
    --------
    >>> figure(3.14159), figure(11850.4)
    ('3.142', '11850')
    """
    return f"{value:.4g}" if abs(value) < 9999.5 else f"{value:.0f}"


def milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else figure(1000 * seconds)
