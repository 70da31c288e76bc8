"""Tokens, masks and positions of texts in the making, in memory that has room for what is to come."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

ROOM = 256
"""Slots that a buffer has at least, beyond what it is made for."""


class TokenBuffer:
    """The tokens of a text and of proposals after it; writing one does not copy the others.

    Everything that is handed out is a view. What stands behind the text is overwritten by the next proposal; the text
    itself is not, unless :meth:`reset` says so.

    Parameters
    ----------
    ids
        ``(B, L)`` the text so far, which is copied; of any integer type, as 64-bit integers.

    Examples
    --------
    >>> text = TokenBuffer(torch.tensor([[5, 6]]))
    >>> text.with_draft(torch.tensor([[7, 8]]))
    tensor([[5, 6, 7, 8]])
    >>> text.advance(1)
    >>> text.with_draft(torch.tensor([[9]]))
    tensor([[5, 6, 7, 9]])
    """

    def __init__(self, ids: Tensor) -> None:
        self._block = torch.empty(len(ids), 0, dtype=torch.long, device=ids.device)
        self.length = 0
        self.reset(ids)

    @property
    def ids(self) -> Tensor:
        """``(B, L)`` the text."""
        return self._block.narrow(1, 0, self.length)

    def reset(self, ids: Tensor, known: int = 0) -> None:
        """Hold ``ids`` ``(B, L)`` in place of everything but the first ``known`` tokens, which are here already."""
        rows, length = ids.shape
        if rows != len(self._block) or ids.device != self._block.device or length > self._block.shape[1]:
            self._block, known = self._block.new_empty(rows, 2 * length + ROOM, device=ids.device), 0
        self._block.narrow(1, known, length - known).copy_(ids.narrow(1, known, length - known))
        self.length = length

    def with_draft(self, tokens: Tensor) -> Tensor:
        """Write a proposal ``(B, n)`` after the text and return both ``(B, L + n)``; the text remains what it is."""
        end = self._reserve(tokens.shape[1])
        self._block.narrow(1, self.length, tokens.shape[1]).copy_(tokens)
        return self._block.narrow(1, 0, end)

    def with_next(self, drafted: int, kept: Sequence[int], token: Tensor) -> Tensor:
        """Write ``token`` ``(B,)`` after the first ``kept`` tokens of each row's last proposal, of ``drafted`` ones.

        Returns all of it, ``(B, L + drafted + 1)``.
        """
        end = self._reserve(drafted + 1)
        if min(kept) == max(kept):
            self._block.narrow(1, self.length + kept[0], 1).copy_(token.unsqueeze(-1))
        else:
            at = torch.tensor(kept).to(token.device, non_blocking=True)
            self._block.narrow(1, self.length, drafted + 1).scatter_(1, at[:, None], token[:, None])
        return self._block.narrow(1, 0, end)

    def advance(self, count: int) -> None:
        """Let ``count`` tokens of the last proposal belong to the text."""
        self.length += count

    def append(self, tokens: Tensor) -> Tensor:
        """Let the text go on with ``tokens`` ``(B, n)``, and return it."""
        text = self.with_draft(tokens)
        self.length = text.shape[1]
        return text

    def _reserve(self, count: int) -> int:
        """Make room for ``count`` tokens after the text, and return where they end."""
        end = self.length + count
        if end > self._block.shape[1]:
            self._block = torch.cat([self._block, self._block.new_empty(len(self._block), end + ROOM)], dim=-1)
        return end


class DraftedText:
    """A text and the tokens that are drafted after it, one by one.

    They are put together only where somebody reads the whole: a draft model whose cache holds the text reads the newest
    token alone.

    Examples
    --------
    >>> text = DraftedText()
    >>> text.begin(torch.tensor([[5, 6]]))
    >>> text.append(torch.tensor([[7]]))
    >>> text.since(2), text.ids
    (tensor([[7]]), tensor([[5, 6, 7]]))
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin another text, or one whose rows have moved."""
        self._whole: TokenBuffer | None = None
        self._known = 0  # committed tokens in it

    def begin(self, ids: Tensor) -> None:
        """Let nothing be drafted after the text ``ids`` ``(B, L)``, which goes on from that of the call before."""
        self._text, self._drafted, self._written = ids, [], -1
        self._known = min(self._known, ids.shape[1])

    def append(self, token: Tensor) -> None:
        """Let ``token`` ``(B, 1)`` be drafted next."""
        self._drafted.append(token)

    @property
    def length(self) -> int:
        """Tokens of the text and of the draft."""
        return self._text.shape[1] + len(self._drafted)

    @property
    def drafted(self) -> Tensor:
        """``(B, n)`` what has been drafted; at least one token."""
        return torch.cat(self._drafted, dim=-1)

    def since(self, start: int) -> Tensor:
        """Return ``(B, L + n - start)`` the tokens from one on, as a view."""
        if self._drafted and start == self.length - 1:
            return self._drafted[-1]
        whole = self.ids if self._drafted else self._text
        return whole.narrow(1, start, self.length - start)

    @property
    def ids(self) -> Tensor:
        """``(B, L + n)`` all of it, as a view that is overwritten when another draft begins."""
        if self._written < 0:
            if self._whole is None:
                self._whole = TokenBuffer(self._text)
            else:
                self._whole.reset(self._text, self._known)
            self._known, self._written = self._text.shape[1], 0
        if self._written < len(self._drafted):
            self._whole.append(torch.cat(self._drafted[self._written :], dim=-1))
            self._written = len(self._drafted)
        return self._whole.ids


class GrowingTensor:
    """A tensor that has one value per token of a text, and how it goes on: made once, read as far as the text has come.

    Parameters
    ----------
    values
        ``(…, L)`` as it begins.
    go_on
        Gives the ``n`` values after it, see :func:`ones` and :func:`counting`.

    Examples
    --------
    >>> GrowingTensor(torch.tensor([[0, 0, 1]]), counting).upto(6)
    tensor([[0, 0, 1, 2, 3, 4]])
    """

    def __init__(self, values: Tensor, go_on: Callable[[Tensor, int], Tensor]) -> None:
        self._block = values
        self._go_on = go_on

    def upto(self, length: int) -> Tensor:
        """Return the first ``length`` values, as a view."""
        return self.between(0, length)

    def between(self, start: int, end: int) -> Tensor:
        """Return the values from ``start`` to ``end``, as a view."""
        missing = end - self._block.shape[-1]
        if missing > 0:
            more = self._go_on(self._block, missing + end + ROOM)
            self._block = torch.cat([self._block, more], dim=-1)
        return self._block.narrow(-1, start, end - start)


def ones(values: Tensor, count: int) -> Tensor:
    """Return what follows a mask: nothing of it is hidden."""
    return values.new_ones(*values.shape[:-1], count)


def counting(values: Tensor, count: int) -> Tensor:
    """Return what follows positions: the next ones."""
    return values[..., -1:] + torch.arange(1, count + 1, dtype=values.dtype, device=values.device)
