"""Statistics and acceptance traces for the screen."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..decoding.progress import TokenStatusStreamer
from ..inspection import Pieces
from .console import Console

LOSSY_STYLE = "underline black on yellow"


def marked(text: str, *, colour: bool) -> Text:
    return Text(text, style=LOSSY_STYLE) if colour else Text(f"«{text}»")


class MarkedText:
    """Generated tokens as text, one by one; marks those that only a lossy rule kept."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, colour: bool) -> None:
        self._pieces, self._colour = Pieces(tokenizer, skip_special_tokens=True), colour
        self._pending = False

    def add(self, token: int, kind: str = "") -> Text:
        """Return the text that one more token adds; ``kind`` is its status in the trace."""
        self._pending = self._pending or kind == "accepted_lossy"
        added = self._pieces.add(token)
        return Text() if added is None else self._marked(added)

    def finish(self) -> Text:
        """Return the rest: an incomplete character."""
        return self._marked(self._pieces.rest())

    def _marked(self, added: str) -> Text:
        body = added.lstrip()
        text = Text(added[: len(added) - len(body)])
        text.append(marked(body, colour=self._colour) if self._pending and body else body)
        self._pending = False
        return text


def traced_text(
    tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int], trace: Sequence[str], *, colour: bool
) -> Text:
    """Return a whole text, marked like :class:`MarkedText`; without a rule ``trace`` is empty."""
    text = MarkedText(tokenizer, colour=colour)
    pieces = [text.add(token, kind) for token, kind in zip(tokens, trace or ("",) * len(tokens), strict=True)]
    return Text.assemble(*pieces, text.finish())


class ConsoleStreamer(TokenStatusStreamer):
    """Prints text as rounds produce it; ``mark`` marks tokens that only a lossy rule kept."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, screen: Console, *, mark: bool = True) -> None:
        self._marked = MarkedText(tokenizer, colour=screen.color_system is not None)
        self._screen, self._mark = screen, mark
        self._tokens: list[int] | None = None  # None before the prompt
        self._printed = 0

    def put(self, value: Tensor) -> None:
        self._tokens = [] if self._tokens is None else [*self._tokens, *value.flatten().tolist()]

    def put_statuses(self, statuses: Sequence[str]) -> None:
        for kind in statuses:
            self._print(self._marked.add(self._tokens[self._printed], kind if self._mark else ""))
            self._printed += 1

    def end(self) -> None:
        """Print tokens without a status, and end the line."""
        self.put_statuses([""] * (len(self._tokens or []) - self._printed))
        self._print(self._marked.finish(), end="\n")

    def _print(self, text: Text, end: str = "") -> None:
        if text or end:
            self._screen.print(text, end=end, soft_wrap=True)
