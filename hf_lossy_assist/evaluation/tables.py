"""Tables of measurements for the screen, and plots of quality against cost."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

from .quality import Interval, Mean, ModeScore

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


def _signed(difference: float, low: float, high: float, digits: int = 1) -> str:
    return f"{difference:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"


def points(row: ModeScore) -> str:
    """Return a mode's difference from the reference with its interval; nothing for the reference itself."""
    values = (row.difference, row.low, row.high)
    return _signed(*(100 * value for value in values)) if any(values) else ""


def score_columns(reference: str) -> dict[str, Column]:
    return {
        "mode": lambda row: row.label,
        "n": lambda row: str(row.n),
        "score\n(%)": lambda row: percent(row.score, 1),
        f"points against\n{reference} (95 %)": points,
    }


def score_table(rows: Iterable[ModeScore], reference: str) -> NumberTable:
    columns = score_columns(reference) | {
        "mean\nkept": lambda row: number(row.mean_accepted),
        "tokens/\nround": lambda row: number(row.tokens_per_round),
        "calls/\n100": lambda row: f"{row.target_calls_per_100_tokens:.1f}",
        "tokens\n/s": lambda row: "" if row.tokens_per_second is None else figure(row.tokens_per_second),
    }
    return table(rows, columns, "Scores; mean kept: drafted tokens per round; calls of the target per 100 tokens")


def apart(mean: Mean, digits: int) -> str:
    """Return a mean's distance from the reference's with its interval; nothing for the reference itself."""
    return "" if mean.low is None else _signed(mean.difference, mean.low, mean.high, digits)


def length_table(rows: Iterable[ModeScore], reference: str) -> NumberTable:
    """Lay out how long answers are and take: a rule that writes more tokens a second may need more of them."""
    columns: dict[str, Column] = {
        "mode": lambda row: row.label,
        "tokens/\nanswer": lambda row: f"{row.tokens_per_answer.mean:.1f}",
        f"against\n{reference} (95 %)": lambda row: apart(row.tokens_per_answer, 1),
        "cut off\n(%)": lambda row: percent(row.cut_off, 1),
        "seconds/\nanswer": lambda row: figure(row.seconds_per_answer.mean) if row.seconds_per_answer else "",
        "against it\n(95 %)": lambda row: apart(row.seconds_per_answer, 2) if row.seconds_per_answer else "",
    }
    return table(rows, columns, "Length and time of answers; cut off: ended at the limit of their length")


def predicted_table(rows: Iterable[ModeScore], reference: str) -> NumberTable | None:
    """Lay out the speeds that follow from an answer's own rounds, and from what rounds cost on this machine."""
    rows = [row for row in rows if row.predicted_seconds is not None]
    columns: dict[str, Column] = {
        "mode": lambda row: row.label,
        "n": lambda row: str(row.n),
        "× best\nlossless (95 %)": lambda row: interval(row.times_lossless),
        "seconds/\nanswer": lambda row: figure(row.predicted_seconds.mean),
        f"against\n{reference} (95 %)": lambda row: apart(row.predicted_seconds, 2),
        "peak\nmemory": lambda row: "" if row.peak_memory is None else f"{row.peak_memory / 2**20:.0f} MiB",
    }
    title = "Predicted from each answer's rounds and their cost here, one text at a time; × tokens per second"
    return table(rows, columns, title) if rows else None


def noise_table(rows: Iterable[ModeScore], said: Mapping[str, str], floor: float) -> NumberTable:
    """Lay out what rounding alone does to texts and scores, and what rules do beyond it."""
    columns: dict[str, Column] = {
        "mode": lambda row: row.label,
        "same\ntexts": lambda row: f"{row.same_texts} of {row.n}",
        "points\n(95 %)": points,
        "beyond\nrounding": lambda row: said[row.label],
    }
    return table(rows, columns, f"Rounding alone moves the score by up to {100 * floor:.1f} points")


def kind_table(kinds: Sequence[Any]) -> NumberTable | None:
    """Lay out acceptance lengths and speeds by category."""
    columns: dict[str, Column] = {
        "category": lambda kind: kind.category,
        "mode": lambda kind: kind.row.label,
        "n": lambda kind: str(kind.row.n),
        "tokens/call\n(95 %)": lambda kind: interval(kind.acceptance),
        "tokens\n/s": lambda kind: "" if kind.row.tokens_per_second is None else figure(kind.row.tokens_per_second),
        "× best\nlossless (95 %)": lambda kind: interval(kind.row.times_lossless),
    }
    title = "By category: tokens per call of the target; speed as it ran, and predicted"
    return table(kinds, columns, title) if kinds else None


def interval(value: Interval | None, form: str = ".2f") -> str:
    """Return a number with the ends of its interval, if that has any length."""
    if value is None:
        return ""
    number, low, high = (f"{x:{form}}" for x in value)
    return number if value[1] == value[2] else f"{number} ({low} to {high})"


@dataclass(frozen=True)
class PlotPoint:
    """A point with an interval in each direction."""

    x: tuple[float, float, float]  # value, low, high
    y: tuple[float, float, float]


def score_point(row: ModeScore, x: float) -> PlotPoint:
    """Return the point of a mode's score, in per cent, with the interval of its difference."""
    low, high = row.score - (row.difference - row.low), row.score + (row.high - row.difference)
    return PlotPoint((x, x, x), (100 * row.score, 100 * low, 100 * high))


def plot(
    points: Mapping[str, PlotPoint],
    xlabel: str,
    ylabel: str,
    path: Path,
    title: str = "",
    *,
    bottom: float | None = None,
    limit: float | None = None,
) -> None:
    """Draw points by their labels; the vertical axis begins at ``bottom``, and a line shows its ``limit``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    for i, ((label, point), marker) in enumerate(zip(points.items(), cycle("osD^vP*X"))):
        (x, left, right), (y, low, high) = point.x, point.y
        axes.errorbar(
            [x], [y], xerr=[[x - left], [right - x]], yerr=[[y - low], [high - y]], fmt=marker, color=f"C{i % 10}",
            ecolor=(0, 0, 0, 0.25), capsize=2, elinewidth=0.6, label=label,
        )  # fmt: skip
    if limit is not None:
        axes.axhline(limit, color="black", linewidth=0.8, linestyle="--", label="limit")
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.set_title(title, fontsize=10)
    axes.margins(0.08)
    axes.set_ylim(bottom=bottom)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=8)
    figure.savefig(path, dpi=130)
