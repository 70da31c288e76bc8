"""Choices of the next token: the likeliest one, or a draw that is a function of the prefix.

The Gumbel-max trick makes sampled generation deterministic (Garipov et al. 2025, appendix A):
``argmax_i log P(i | prefix) + Gumbel(seed, prefix)_i`` is distributed as P and yet the same every time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..errors import LossyValueError

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


class Choice(Protocol):
    """The interface of what chooses next tokens. A *context* stands for a prefix, and is extended token by token."""

    def context(self, ids: Iterable[int]) -> int:
        """Return the context of a prefix."""

    def extend(self, context: int, token: int) -> int:
        """Return the context of a prefix with one more token."""

    def choose(self, logits: Tensor, contexts: list[int]) -> list[int]:
        """Return one token for each row of ``(N, V)`` logits and its context."""


@dataclass(frozen=True)
class Greedy(Choice):
    """A choice of the likeliest token, whatever the context is.

    Examples
    --------
    >>> Greedy().choose(torch.tensor([[0.0, 2.0, 1.0]]), [0])
    [1]
    """

    def context(self, ids: Iterable[int]) -> int:
        return 0

    def extend(self, context: int, token: int) -> int:
        return 0

    def choose(self, logits: Tensor, contexts: list[int]) -> list[int]:
        return logits.argmax(-1).tolist()


@dataclass(frozen=True)
class GumbelMax(Choice):
    """``argmax_i log P(i | prefix) + Gumbel(seed, prefix)_i``: a sample that depends on nothing but seed and prefix.

    P is the softmax of the logits divided by the temperature. Target and draft see the same noise after the same
    prefix, so they differ no more often than their distributions do.

    Examples
    --------
    >>> choice = GumbelMax(seed=0)
    >>> context = choice.context([5, 6, 7])
    >>> context == choice.extend(choice.context([5, 6]), 7)
    True
    >>> logits = torch.zeros(1, 1000)
    >>> choice.choose(logits, [context]) == choice.choose(logits, [context])
    True
    """

    seed: int
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise LossyValueError(f"`temperature` has to be a number > 0, but is {self.temperature}")

    def context(self, ids: Iterable[int]) -> int:
        context = _mix((self.seed + _GOLDEN) & _MASK)
        for token in ids:
            context = self.extend(context, token)
        return context

    def extend(self, context: int, token: int) -> int:
        return _mix((context ^ ((token + 1) * _GOLDEN)) & _MASK)

    def choose(self, logits: Tensor, contexts: list[int]) -> list[int]:
        scores = logits.to(torch.float64) / self.temperature
        return (scores + gumbel(contexts, logits.shape[-1], logits.device)).argmax(-1).tolist()


def gumbel(contexts: list[int], vocabulary: int, device: torch.device | str = "cpu") -> Tensor:
    """Return ``(N, V)`` standard Gumbel draws, row i a function of ``contexts[i]`` alone.

    The j-th number of a row is SplitMix64's j-th output from that state, so nothing has to be drawn in order.

    Examples
    --------
    >>> noise = gumbel([1, 2], 50_000)
    >>> torch.equal(noise[1], gumbel([2], 50_000)[0])
    True
    >>> round(noise.mean().item(), 1)  # Euler's constant, 0.577
    0.6
    """
    state = torch.tensor([_signed(context) for context in contexts], device=device)[:, None]
    counter = torch.arange(1, vocabulary + 1, device=device)[None]
    bits = state + counter * _signed(_GOLDEN)
    for shift, factor in zip((30, 27), _MIX, strict=True):
        bits = (bits ^ _shift(bits, shift)) * _signed(factor)
    bits = bits ^ _shift(bits, 31)
    # 53 bits, kept away from 0 and 1. Small values become the large, exact tail of the Gumbel distribution.
    uniform = (_shift(bits, 11).to(torch.float64) + 0.5) * 2.0**-53
    return -torch.log(-torch.log1p(-uniform))


def _mix(x: int) -> int:
    """Return SplitMix64's scrambling of 64 bits."""
    x = ((x ^ (x >> 30)) * _MIX[0]) & _MASK
    x = ((x ^ (x >> 27)) * _MIX[1]) & _MASK
    return x ^ (x >> 31)


def _signed(x: int) -> int:
    """Return 64 bits as the number that int64 reads in them."""
    return x - (1 << 64) if x >> 63 else x


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shift int64 to the right as if it had no sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
