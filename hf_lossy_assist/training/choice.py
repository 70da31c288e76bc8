"""Choices of the next token: the likeliest one, or a draw that is a function of seed and prefix."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Protocol

import torch
from torch import Tensor

from ..errors import LossyValueError

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


class Choice(Protocol):
    """Chooses next tokens. A *context* is a hash of a prefix, which grows token by token; by default it is constant."""

    def context(self, ids: Iterable[int]) -> int:
        return 0

    def extend(self, context: int, token: int) -> int:
        return context

    def choose(self, logits: Tensor, contexts: list[int]) -> list[int]:
        """Return one token for each row of logits ``(N, V)``, whose prefix has the context."""


@dataclass(frozen=True)
class Greedy(Choice):
    def choose(self, logits: Tensor, contexts: list[int]) -> list[int]:
        return logits.argmax(-1).tolist()


@dataclass(frozen=True)
class GumbelMax(Choice):
    """``argmax_i log P(i | prefix) + Gumbel(seed, prefix)_i``: a draw from P that depends on seed and prefix alone.

    Garipov et al. 2025 (AutoJudge), appendix A. P is the softmax of the logits divided by the temperature. After equal
    prefixes target and draft get equal noise, so they rarely differ where their distributions agree.
    """

    seed: int
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise LossyValueError(f"`temperature` has to be a number > 0, but is {self.temperature}")

    def context(self, ids: Iterable[int]) -> int:
        return reduce(self.extend, ids, _mix((self.seed + _GOLDEN) & _MASK))

    def extend(self, context: int, token: int) -> int:
        return _mix((context ^ ((token + 1) * _GOLDEN)) & _MASK)

    def choose(self, logits: Tensor, contexts: list[int]) -> list[int]:
        scores = logits.to(torch.float64) / self.temperature
        return (scores + gumbel(contexts, logits.shape[-1], logits.device)).argmax(-1).tolist()


def gumbel(contexts: list[int], vocabulary: int, device: torch.device | str = "cpu") -> Tensor:
    """Return standard Gumbel draws ``(N, V)``, row i a function of ``contexts[i]`` alone.

    The j-th number of a row is SplitMix64's j-th output from that state, so all are computed at once.
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
    """Scramble 64 bits as SplitMix64 does."""
    x = ((x ^ (x >> 30)) * _MIX[0]) & _MASK
    x = ((x ^ (x >> 27)) * _MIX[1]) & _MASK
    return x ^ (x >> 31)


def _signed(x: int) -> int:
    """Reinterpret 64 bits as int64."""
    return x - (1 << 64) if x >> 63 else x


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shift int64 to the right as unsigned."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
