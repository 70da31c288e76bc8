"""Distributions and their divergences in nats, and seeded draws from them."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Randomness:
    """The source of every random number of one run.

    A seed gives the run its own generators, one per device; without a seed, torch's global generator is used.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def generator(self, device: torch.device) -> torch.Generator | None:
        if self.seed is None:
            return None
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self.seed)
        return self._generators[device]

    def uniform(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        return torch.rand(shape, dtype=torch.float32, device=device, generator=self.generator(device))

    def categorical(self, weights: Tensor) -> Tensor:
        """Draw one index per row of non-negative weights ``(..., V)``; rows are not checked, see :func:`drawable`."""
        # As `torch.multinomial` draws, without its checks, which are eleven of fourteen kernels on a GPU.
        waits = self.waits(weights.shape, weights.device, weights.dtype)
        return torch.div(weights, waits, out=waits).argmax(-1)

    def waits(self, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
        """Draw exponential waiting times: of weights divided by these, the largest is at an index drawn from them."""
        return torch.empty(shape, device=device, dtype=dtype).exponential_(generator=self.generator(device))

    def state(self, device: torch.device) -> Tensor:
        """Return what :meth:`restore` goes back to; no device is waited for."""
        return self._in_use(device).get_state()

    def restore(self, device: torch.device, state: Tensor) -> None:
        """Draw again what was drawn on a device since :meth:`state`."""
        self._in_use(device).set_state(state)

    def _in_use(self, device: torch.device) -> torch.Generator:
        if (own := self.generator(device)) is not None:
            return own
        if device.type == "cpu":
            return torch.default_generator
        return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]

    def keep_mask(self, shape: tuple[int, ...], rate: float | Tensor, like: Tensor) -> Tensor:
        """Return an inverted-dropout mask: 0 with probability ``rate``, else ``1 / (1 - rate)``."""
        mask = torch.empty(shape, device=like.device, dtype=like.dtype)
        return mask.bernoulli_(1 - rate, generator=self.generator(like.device)).div_(1 - rate)


def drawable(weights: Tensor) -> Tensor:
    """Tell which rows of weights ``(..., V)`` can be drawn from: all are finite, and some are positive."""
    total = weights.sum(-1)
    return (total > 0) & (total < torch.inf)


def point_mass(tokens: Tensor, like: Tensor) -> Tensor:
    """Return the distributions ``(..., V)`` that are certain of ``tokens`` ``(...)``."""
    # torch's one_hot synchronises to find the largest token.
    return like.new_zeros(*tokens.shape, like.shape[-1]).scatter_(-1, tokens[..., None], 1.0)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """Return weights proportional to ``[p - q]+``, or ``p`` where that is zero; all are ``(..., V)``.

    This is the correction's distribution in speculative sampling (Leviathan et al. 2023, section 2.3).
    """
    rest = (p - q).clamp_(min=0)
    return torch.where(rest.sum(-1, keepdim=True) > torch.finfo(rest.dtype).tiny, rest, p)


def entropy(probs: Tensor) -> Tensor:
    """Return ``-Σ p log p``."""
    if probs.device.type != "cpu":
        return torch.special.entr(probs).sum(-1)
    # Twice as fast as `entr` there, which is not vectorised.
    return -probs.clamp(min=torch.finfo(probs.dtype).tiny).log_().mul_(probs).sum(-1)


def js_of(entropy_a: Tensor, entropy_b: Tensor, total: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergence of two distributions from their entropies and their sum ``a + b``."""
    # H((a+b)/2) = ln 2 - Σ (a+b) log (a+b) / 2, so the sum need not be halved.
    return (math.log(2) + (entropy(total) - entropy_a - entropy_b) / 2).clamp_(min=0)


def js_divergence(a: Tensor, b: Tensor) -> Tensor:
    """Return ``JS(a ‖ b) = H((a+b)/2) - (H(a) + H(b))/2``, in [0, ln 2]."""
    return js_of(entropy(a), entropy(b), a + b)


def kl_divergence(p: Tensor, q: Tensor) -> Tensor:
    """Return ``KL(p ‖ q)``; infinite where q lacks a token of p."""
    return (torch.xlogy(p, p) - torch.xlogy(p, q)).sum(-1)


def total_variation(p: Tensor, q: Tensor) -> Tensor:
    """Return ``Σ |p - q| / 2``, in [0, 1]."""
    return (p - q).abs().sum(-1) / 2


STEP = -0x61C8864680B583EB
"""By which SplitMix64's state grows (Steele et al. 2014); its numbers of 64 bits are signed here, and wrap around."""
MIX = (30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)
"""Its shifts, and the factors after them."""


def mixed(x: Tensor) -> Tensor:
    """Return 64 bits for each int64, a function of it that looks random: SplitMix64's finaliser."""
    for shift, factor in MIX:
        x = (x ^ shifted(x, shift)) * factor
    return x ^ shifted(x, 31)


def shifted(x: Tensor, bits: int) -> Tensor:
    """Shift int64 to the right as unsigned."""
    return x >> bits & (1 << 64 - bits) - 1
