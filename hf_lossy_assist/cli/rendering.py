"""Tables, statistics and acceptance traces, as a person reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text
from transformers import PreTrainedTokenizerBase

from ..stats import LossyStats

LOSSY_STYLE = "bold black on yellow"
# What marks the same tokens where a console has no colours.
OPEN, CLOSE = "«", "»"


Column = Callable[[Any], str]
"""Returns a row's cell."""


def table(rows: Iterable[Any], columns: Mapping[str, Column], title: str) -> Table:
    """Lay out rows in columns by name: the first may hold text, which is folded, and the others hold numbers."""
    cells = [[column(row) for column in columns.values()] for row in rows]
    laid_out = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    first, *numbers = columns
    laid_out.add_column(first, overflow="fold", min_width=min(14, max((len(row[0]) for row in cells), default=0)))
    for name in numbers:
        laid_out.add_column(name, justify="right", no_wrap=True)
    for row in cells:
        laid_out.add_row(*row)
    return laid_out


def number(value: float | None) -> str:
    """Return a number with two decimals; the empty string for None."""
    return "" if value is None else f"{value:.2f}"


def percent(share: float | None, digits: int = 0) -> str:
    """Return a share in per cent; the empty string for None."""
    return "" if share is None else f"{100 * share:.{digits}f}"


def milliseconds(seconds: float | None) -> str:
    """Return a time in milliseconds; the empty string for None."""
    return "" if seconds is None else f"{1000 * seconds:.4g}"


def stats_table(stats: LossyStats) -> Table:
    """Return a table of one call's statistics."""
    table = Table("statistic", "value", title=stats.title)
    for name, value in stats.figures().items():
        table.add_row(name, value)
    return table


def marked(text: str, *, colour: bool) -> Text:
    """Return text in the style, or between the characters, that make it stand out."""
    return Text(text, style=LOSSY_STYLE) if colour else Text(f"{OPEN}{text}{CLOSE}")


def traced_text(
    tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int], trace: Sequence[str], *, colour: bool
) -> Text:
    """Return generated text in which the tokens that only a lossy rule let through stand out.

    ``trace`` says what became of each token, and is empty for text that no rule was applied to. Without ``colour``, «
    and » mark what a style marks otherwise.
    """
    text = Text()
    shown = ""
    pending = False
    for end, kind in enumerate(trace or ("",) * len(tokens), 1):
        # A token may hold half a character, or be a space only after another: decode prefixes, show increments.
        prefix = tokenizer.decode(tokens[:end], skip_special_tokens=True)
        pending = pending or kind == "accepted_lossy"
        if prefix.endswith("\N{REPLACEMENT CHARACTER}") and end < len(tokens):
            continue
        added, shown = prefix[len(shown) :], prefix
        if pending and added:
            body = added.lstrip()
            text.append(added[: len(added) - len(body)])
            text.append(marked(body, colour=colour))
        else:
            text.append(added)
        pending = False
    return text
