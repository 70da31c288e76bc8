"""Tables, statistics and acceptance traces, as a person reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..decoding.progress import FateStreamer
from ..stats import LossyStats

LOSSY_STYLE = "underline black on yellow"
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


def figure(value: float) -> str:
    """Return a number with four digits, or all of those before the point.

    Examples
    --------
    >>> figure(3.14159), figure(11850.4)
    ('3.142', '11850')
    """
    return f"{value:.4g}" if abs(value) < 9999.5 else f"{value:.0f}"


def milliseconds(seconds: float | None) -> str:
    """Return a time in milliseconds; the empty string for None."""
    return "" if seconds is None else figure(1000 * seconds)


def stats_table(stats: LossyStats) -> Table:
    """Return a table of one call's statistics."""
    table = Table("statistic", "value", title=stats.title)
    for name, value in stats.figures().items():
        table.add_row(name, value)
    return table


def marked(text: str, *, colour: bool) -> Text:
    """Return text in the style, or between the characters, that make it stand out."""
    return Text(text, style=LOSSY_STYLE) if colour else Text(f"{OPEN}{text}{CLOSE}")


class MarkedText:
    """Generated tokens as text, a piece at a time; those that only a lossy rule let through stand out.

    Parameters
    ----------
    tokenizer
        Of the tokens.
    colour
        Whether a style marks them; « and » do otherwise.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, colour: bool) -> None:
        self._tokenizer, self._colour = tokenizer, colour
        self._tokens: list[int] = []  # of the last line
        self._shown = ""
        self._pending = False

    def add(self, token: int, kind: str = "") -> Text:
        """Return what one more token adds; ``kind`` says what became of it, as a trace does."""
        self._tokens.append(token)
        self._pending = self._pending or kind == "accepted_lossy"
        # A token may hold half a character, or be a space only after another: decode the line, show increments.
        line = self._tokenizer.decode(self._tokens, skip_special_tokens=True)
        return Text() if line.endswith("\N{REPLACEMENT CHARACTER}") else self._next(line)

    def finish(self) -> Text:
        """Return what is left: a character of which the end is missing."""
        return self._next(self._tokenizer.decode(self._tokens, skip_special_tokens=True))

    def _next(self, line: str) -> Text:
        added, self._shown = line[len(self._shown) :], line
        body = added.lstrip()
        text = Text(added[: len(added) - len(body)])
        text.append(marked(body, colour=self._colour) if self._pending and body else body)
        self._pending = False
        if line.endswith("\n"):
            self._tokens, self._shown = [], ""
        return text


def traced_text(
    tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int], trace: Sequence[str], *, colour: bool
) -> Text:
    """Return a whole generated text, marked like :class:`MarkedText`.

    ``trace`` says what became of each token, and is empty for text that no rule was applied to.
    """
    text = MarkedText(tokenizer, colour=colour)
    pieces = [text.add(token, kind) for token, kind in zip(tokens, trace or ("",) * len(tokens), strict=True)]
    return Text.assemble(*pieces, text.finish())


class ConsoleStreamer(FateStreamer):
    """Prints text as rounds produce it, and marks what only a lossy rule let through.

    Parameters
    ----------
    tokenizer
        Of the tokens.
    screen
        Where to.
    mark
        Whether anything is marked.

    Attributes
    ----------
    text
        What has been printed, without marks.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, screen: Console, *, mark: bool = True) -> None:
        self._marked = MarkedText(tokenizer, colour=screen.color_system is not None)
        self._tokenizer, self._screen, self._mark = tokenizer, screen, mark
        self._tokens: list[int] | None = None  # none until the prompt has been seen
        self._printed = 0

    @property
    def text(self) -> str:
        """The response so far."""
        return self._tokenizer.decode(self._tokens or [], skip_special_tokens=True)

    def put(self, value: Tensor) -> None:
        """Take the prompt first, then the tokens of a round."""
        self._tokens = [] if self._tokens is None else [*self._tokens, *value.flatten().tolist()]

    def put_fates(self, fates: Sequence[str]) -> None:
        """Print the next tokens."""
        for kind in fates:
            self._print(self._marked.add(self._tokens[self._printed], kind if self._mark else ""))
            self._printed += 1

    def end(self) -> None:
        """Print what is left, of tokens that nobody judged, and end the line."""
        self.put_fates([""] * (len(self._tokens or []) - self._printed))
        self._print(self._marked.finish(), end="\n")

    def _print(self, text: Text, end: str = "") -> None:
        if text or end:
            self._screen.print(text, end=end, soft_wrap=True)
