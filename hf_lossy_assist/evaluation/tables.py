"""Tables of numbers for the screen, and numbers in words."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

Column = Callable[[Any], str]

_ANY_WIDTH = 10_000
_LABEL = 14  # the least width of labels, where they are longer


@dataclass(frozen=True)
class NumberTable:
    """Labelled rows of numbers, with every number whole.

    Where the screen is too narrow, labels break between their parts, and intervals go below their numbers.
    """

    title: str | None
    names: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]

    def __rich_console__(self, screen: Console, options: ConsoleOptions) -> RenderResult:
        if self.room(screen, options) >= max((len(row[0]) for row in self.cells), default=0):
            yield self._laid_out()
            return
        names, *cells = ((x, *(text.replace(" (", "\n(") for text in row)) for x, *row in (self.names, *self.cells))
        broken = replace(self, names=names, cells=tuple(cells))
        yield broken._laid_out(max(_LABEL, broken.room(screen, options)))

    def room(self, screen: Console, options: ConsoleOptions) -> int:
        """Return the width that the numbers leave for labels."""
        others = replace(self, cells=tuple(("", *row[1:]) for row in self.cells))._laid_out()
        own = len(self.names[0])
        return options.max_width - screen.measure(others, options=options.update(max_width=_ANY_WIDTH)).maximum + own

    def _laid_out(self, width: int = _ANY_WIDTH) -> Table:
        """Return the table; ``width`` is the most that labels get."""
        laid_out = Table(title=self.title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        first, *numbers = self.names
        laid_out.add_column(first, no_wrap=True)
        for name in numbers:
            laid_out.add_column(name, justify="right", no_wrap=True)
        for label, *cells in self.cells:
            laid_out.add_row(wrapped(label, width), *cells)
        return laid_out


def wrapped(label: str, width: int) -> str:
    """Break a label into lines, between its parts alone."""
    lines = [""]
    for part in re.findall(r"(?:[^:+ ]| (?=%))*[:+ ]|(?:[^:+ ]| (?=%))+", label):
        if len(lines[-1]) + len(part.rstrip()) <= width:
            lines[-1] += part
        else:
            lines.append(part)
    return "\n".join(line.rstrip() for line in lines).strip("\n")


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
