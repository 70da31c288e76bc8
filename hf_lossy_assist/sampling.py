"""From logits to tokens: the user's processors, distributions and their divergences in nats, seeded draws."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from transformers import LogitsProcessorList

from .compat import PREFIX_FREE_PROCESSORS


class Randomness:
    """The source of every random number of one run.

    Parameters
    ----------
    seed
        With a seed, generators of the run's own (one per device), so equal seeds give equal runs; without,
        torch's global generator.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def generator(self, device: torch.device) -> torch.Generator | None:
        """Return the run's own generator on a device; None where torch's global one serves."""
        if self.seed is None:
            return None
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self.seed)
        return self._generators[device]

    def uniform(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Return draws from U[0, 1)."""
        return torch.rand(shape, device=device, generator=self.generator(device))

    def categorical(self, weights: Tensor) -> Tensor:
        """Draw one index per row of non-negative ``weights`` of shape ``(..., V)``; returns shape ``(...)``."""
        flat = weights.reshape(-1, weights.shape[-1])
        drawn = torch.multinomial(flat, 1, generator=self.generator(weights.device))
        return drawn.reshape(weights.shape[:-1])

    def keep_mask(self, shape: tuple[int, ...], rate: float | Tensor, like: Tensor) -> Tensor:
        """Return an inverted-dropout mask: 0 with probability ``rate``, which broadcasts, else ``1 / (1 - rate)``."""
        mask = torch.empty(shape, device=like.device, dtype=like.dtype)
        return mask.bernoulli_(1 - rate, generator=self.generator(like.device)).div_(1 - rate)


def point_mass(tokens: Tensor, like: Tensor) -> Tensor:
    """Return the laws ``(..., V)`` that are certain of ``tokens`` ``(...)``, over the vocabulary of ``like``."""
    # torch's one_hot reads the largest and the least token first.
    return like.new_zeros(*tokens.shape, like.shape[-1]).scatter_(-1, tokens[..., None], 1.0)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """Return weights proportional to ``[p - q]+``, or ``p`` where that vanishes.

    The law of the correction in speculative sampling (Leviathan et al. 2023, section 2.3).

    Parameters
    ----------
    p, q
        Probabilities of shape ``(..., V)``.
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


def js_divergence(a: Tensor, b: Tensor, entropy_b: Tensor | None = None) -> Tensor:
    """Return ``JS(a ‖ b) = H((a+b)/2) - (H(a) + H(b))/2``, in [0, ln 2]; ``entropy_b`` where it is known already."""
    return js_of(entropy(a), entropy(b) if entropy_b is None else entropy_b, a + b)


def kl_divergence(p: Tensor, q: Tensor) -> Tensor:
    """Return ``KL(p ‖ q)``; infinite where q lacks a token of p."""
    return (torch.xlogy(p, p) - torch.xlogy(p, q)).sum(-1)


def total_variation(p: Tensor, q: Tensor) -> Tensor:
    """Return ``Σ |p - q| / 2``, in [0, 1]."""
    return (p - q).abs().sum(-1) / 2


def process(processors: LogitsProcessorList, ids: Tensor, logits: Tensor) -> Tensor:
    """Return the processed logits of the last positions of a sequence.

    Parameters
    ----------
    processors
        The user's processors; they see the prefix of each position, as in plain ``generate()``.
    ids
        ``(B, L)`` the prompt, everything committed, and the tokens up to the last position.
    logits
        ``(B, m, V)`` float32; ``logits[:, -1]`` follows ``ids``, ``logits[:, 0]`` follows ``ids[:, : L-m+1]``.
        May be overwritten.
    """
    if not processors or logits.shape[1] == 0:
        return logits
    batch, positions, vocabulary = logits.shape
    if not reads_text(processors):
        flat = logits.reshape(batch * positions, vocabulary)
        return processors(ids[:, -1:].expand(batch, positions).reshape(-1, 1), flat).view_as(logits)
    ids = ids.clone()  # a processor may keep what it is shown, and the text's memory is written to again
    start = ids.shape[1] - positions + 1
    return torch.stack([processors(ids[:, : start + i], logits[:, i]) for i in range(positions)], dim=1)


def process_paths(processors: LogitsProcessorList, ids: Tensor, logits: Tensor) -> Tensor:
    """Do the same for several laws at every position.

    Parameters
    ----------
    processors, ids
        As for :func:`process`.
    logits
        ``(B, K, m, V)`` in any precision, which they keep if there are no processors. May be overwritten.
    """
    if not processors:
        return logits
    logits = logits.float()
    if not reads_text(processors):
        return process(processors, ids, logits.flatten(1, 2)).view_as(logits)
    return torch.stack([process(processors, ids, path) for path in logits.unbind(1)], dim=1)


def reads_text(processors: LogitsProcessorList) -> bool:
    """Tell whether a processor may look at the text before what it processes."""
    return any(type(processor) not in PREFIX_FREE_PROCESSORS for processor in processors)
