"""Random numbers that follow from a request's seed and a position in its text, and from nothing else."""

from __future__ import annotations

import hashlib
from math import prod

import torch
from torch import Tensor

from ...core.distributions import Randomness

_MIX = (-0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)  # SplitMix64's factors as signed numbers
_STEP = -0x61C8864680B583EB


def seed_of(request: str, seed: int) -> int:
    """Return the seed of a request without its own: processes of one engine agree on it, and requests differ."""
    digest = hashlib.blake2b(f"{seed}:{request}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def keys_of(seeds: Tensor, positions: Tensor) -> Tensor:
    """Return ``(N,)`` one key for each seed and position, all int64."""
    return _mixed(seeds + _mixed(positions.long() + 1))


class KeyedRandomness(Randomness):
    """Draws that depend on one key per row ``(B,)`` only, whichever rows, processes and rounds there are."""

    def __init__(self, keys: Tensor) -> None:
        super().__init__()
        self.keys = keys
        self._draws = 0

    def uniform(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        return (self._bits(shape) >> 40 & 0xFFFFFF).float().mul_(2.0**-24)

    def categorical(self, weights: Tensor) -> Tensor:
        sums = weights.double().cumsum(-1)
        u = (self._bits(weights.shape[:-1]) >> 11 & (1 << 53) - 1).double().mul_(2.0**-53)
        return torch.searchsorted(sums, (u * sums[..., -1])[..., None], right=True)[..., 0].clamp_(
            max=sums.shape[-1] - 1
        )

    def keep_mask(self, shape: tuple[int, ...], rate: float | Tensor, like: Tensor) -> Tensor:
        return (self.uniform(shape, like.device) >= rate).to(like.dtype) / (1 - rate)

    def _bits(self, shape: tuple[int, ...]) -> Tensor:
        """Return 64 random bits for each cell of ``shape``, whose first dimension is that of the keys."""
        self._draws += 1
        rows = _mixed(self.keys + self._draws)
        cells = torch.arange(1, prod(shape[1:]) + 1, device=rows.device) * _STEP
        return _mixed(rows[:, None] + cells).reshape(shape)


def _mixed(x: Tensor) -> Tensor:
    """SplitMix64's finaliser (Steele et al. 2014); int64 wraps around, and shifts have to be made logical."""
    x = (x ^ _shifted(x, 30)) * _MIX[0]
    x = (x ^ _shifted(x, 27)) * _MIX[1]
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    return x >> bits & (1 << 64 - bits) - 1
