"""Closed forms for studies: acceptance and output distributions of rules at one position, and FLOPs of rounds.

``p`` is the target's distribution, ``q`` the draft's, both tensors of the shape ``(..., V)``. SPRINTER's theorems 1 and
7, for a verifier with false-positive rate b, are the forms of ``ensemble`` with w = 1 - b.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from hf_lossy_assist.core.distributions import residual

Law = Callable[[Tensor, Tensor, float], Tensor]


def _raised(p: Tensor, delta: float) -> Tensor:
    """Return Cactus's ``h(x) = min(1, p + √(2δ·p·(1 - p)))`` for every x (Hao & Mou 2026, section 2.2)."""
    return (p + (2 * delta * p * (1 - p)).clamp(min=0).sqrt()).clamp(max=1)


def _ears_kept(p: Tensor, q: Tensor, beta: float) -> Tensor:
    return q.minimum(p + beta * (1 - p.amax(-1, keepdim=True)) * q) * (p > 0)


def _cactus_correction(p: Tensor, q: Tensor, delta: float) -> Tensor:
    raised = _raised(p, delta)
    scale = (1 - raised) / (1 - p).clamp(min=torch.finfo(p.dtype).tiny)
    drafted = torch.eye(p.shape[-1], dtype=torch.bool, device=p.device)
    h = torch.where(drafted, raised[..., :, None], scale[..., :, None] * p[..., None, :])
    return residual(h, q[..., None, :].expand_as(h))


def _residual(p: Tensor, q: Tensor, _: float) -> Tensor:
    return residual(p, q)[..., None, :]


RULES: Mapping[str, tuple[Law, Law]] = {
    "lossless": (lambda p, q, _: p.minimum(q), _residual),
    "ears": (_ears_kept, _residual),
    "lenience": (lambda p, q, a: q.minimum(p / a), lambda p, q, a: residual(p, a * q)[..., None, :]),
    "ensemble": (lambda p, q, w: q.minimum((1 - w) * q + w * p), _residual),
    "cactus": (lambda p, q, delta: q.minimum(_raised(p, delta)), _cactus_correction),
}
"""By rule, the probability ``(..., V)`` that each token is drafted and kept, and the law ``(..., V or 1, V)``, up to a
factor, of the token that replaces it. Arguments are p, q and the rule's setting."""


def acceptance(rule: str, p: Tensor, q: Tensor, setting: float = 0.0) -> Tensor:
    """Return the probability ``(...)`` that a rule of :data:`RULES` keeps a drafted token.

    Examples
    --------
    >>> p, q = torch.tensor([0.5, 0.5]), torch.tensor([0.75, 0.25])
    >>> {rule: round(acceptance(rule, p, q, 0.02).item(), 3) for rule in ("ears", "cactus")}
    {'ears': 0.757, 'cactus': 0.85}
    """
    return RULES[rule][0](p, q, setting).sum(-1)


def output_law(rule: str, p: Tensor, q: Tensor, setting: float = 0.0) -> Tensor:
    """Return the distribution ``(..., V)`` of the token that a rule of :data:`RULES` emits.

    Examples
    --------
    >>> output_law("ensemble", torch.tensor([0.5, 0.5]), torch.tensor([0.75, 0.25]), 0.5)
    tensor([0.6250, 0.3750])
    """
    kept, correction = (part(p, q, setting) for part in RULES[rule])
    return kept + ((q - kept)[..., None] * correction / correction.sum(-1, keepdim=True)).sum(-2)


def cactus_divergence(p: Tensor, delta: float) -> Tensor:
    """Return ``KL(h ‖ p)`` where the drafted token has the probability ``p``: at most ``ln(1 + 2δ)``.

    Examples
    --------
    >>> cactus_divergence(torch.tensor([0.01, 0.5, 1 / 1.2]), delta=0.1)
    tensor([0.0489, 0.1036, 0.1823])
    """
    h = _raised(p, delta)
    # Where p is 0 or 1, so is h.
    return (torch.special.xlogy(h, h / p) + torch.special.xlogy(1 - h, (1 - h) / (1 - p))).nan_to_num(0.0)


def sprinter_run_length_law(tpr: float, fpr: float, r: int, longest: int) -> Tensor:
    """Return ``P(N = i)`` for i = 0 … ``longest``, with N the tokens that SPRINTER commits in a run (theorem 2).

    Examples
    --------
    >>> sprinter_run_length_law(0.5, 0.25, r=1, longest=2).tolist()
    [0.5, 0.375, 0.09375]
    """
    i = torch.arange(longest + 2, dtype=torch.float64)
    reached = tpr ** i.clamp(max=r) * fpr ** (i - r).clamp(min=0)
    return reached[:-1] - reached[1:]


class RoundFlops(NamedTuple):
    """Operations of one round: by SPRINTER's equations 5 and 6, and as computed."""

    published: float
    actual: float


def lossless_round_flops(gamma: int, draft: float, target: float) -> RoundFlops:
    """Return the operations of a round of γ drafted tokens, from those of one draft and one target forward.

    The paper counts γ tokens for the target. The target reads γ + 1, because its last token has no keys and values.

    Examples
    --------
    >>> lossless_round_flops(5, draft=1.0, target=10.0)
    RoundFlops(published=55.0, actual=65.0)
    """
    return RoundFlops(gamma * (draft + target), gamma * draft + (gamma + 1) * target)


def sprinter_round_flops(gamma: int, draft: float, verifier: float, target: float) -> RoundFlops:
    """Return the operations of a run of SPRINTER in which the target decides the last of γ drafted tokens.

    The paper counts one token of the target, but the target has to read all γ tokens. SPRINTER saves calls of the
    target, and so reads of its weights, but hardly operations.

    Examples
    --------
    >>> sprinter_round_flops(5, draft=1.0, verifier=0.0, target=10.0)
    RoundFlops(published=15.0, actual=55.0)
    """
    own = gamma * (draft + verifier)
    return RoundFlops(own + target, own + gamma * target)
