"""Entropies and divergences of distributions over tokens, in nats over the last dimension."""

from __future__ import annotations

import math

import torch
from torch import Tensor


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
