"""How often rules keep a drafted token, and the distribution of what they emit instead of p.

Every function is about one position: x is drawn from q, kept with the rule's probability, else replaced by a
draw from the rule's correction. Distributions have the shape ``(..., V)``, acceptances ``(...)``. A token with
``p(x) = 0``, one that a logits processor forbids, is never kept, except by the ensemble.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..sampling import residual
from .arguments import distributions, number, numbers

_EPSILON = torch.finfo(torch.float32).eps


def total_variation(p: Any, q: Any) -> Any:
    """Return ``TV(p, q) = Σ |p - q| / 2``, in [0, 1].

    Examples
    --------
    >>> total_variation([0.5, 0.5], [0.75, 0.25]).item()
    0.25
    """
    (p, q), back = distributions(p=p, q=q)
    return back((p - q).abs().sum(-1) / 2)


def lossless_acceptance(p: Any, q: Any) -> Any:
    """Return ``Σ min(p, q) = 1 - TV(p, q)``, the probability that the lossless rule keeps a drafted token.

    Leviathan et al. 2023, corollary 3.6.

    Examples
    --------
    >>> lossless_acceptance([0.5, 0.5], [0.75, 0.25]).item()
    0.75
    """
    (p, q), back = distributions(p=p, q=q)
    return back(p.minimum(q).sum(-1))


def lossless_output_law(p: Any, q: Any) -> Any:
    """Return the distribution of the lossless rule's token, which is p: ``min(p, q) + [p - q]+``.

    Leviathan et al. 2023, appendix A.1.

    Examples
    --------
    >>> lossless_output_law([0.5, 0.5], [0.75, 0.25]).tolist()
    [0.5, 0.5]
    """
    (p, q), back = distributions(p=p, q=q)
    return back(_emitted(p.minimum(q), residual(p, q)))


def ears_acceptance(p: Any, q: Any, beta: float) -> Any:
    """Return ``Σ min(q, p + β·(1 - max p)·q)``, the probability that EARS keeps a drafted token.

    Sun et al., "EARS", section 3.2: given x, ``min(1, p(x)/q(x) + β·(1 - max p))``.

    Parameters
    ----------
    beta
        The tolerance per unit of the target's uncertainty, in [0, 1]; 0 is lossless.

    Examples
    --------
    >>> round(ears_acceptance([0.5, 0.5], [0.75, 0.25], beta=0.1).item(), 4)
    0.7875
    """
    (p, q), back = distributions(p=p, q=q)
    return back(_ears_kept(p, q, beta).sum(-1))


def ears_output_law(p: Any, q: Any, beta: float) -> Any:
    """Return the distribution of the token that EARS emits, with the lossless correction ``norm([p - q]+)``.

    Examples
    --------
    >>> [round(x, 4) for x in ears_output_law([0.5, 0.5], [0.75, 0.25], beta=0.1).tolist()]
    [0.5375, 0.4625]
    """
    (p, q), back = distributions(p=p, q=q)
    return back(_emitted(_ears_kept(p, q, beta), residual(p, q)))


def lenience_acceptance(p: Any, q: Any, lenience: float) -> Any:
    """Return ``Σ min(q, p/ℓ)``, the probability that the lossless rule with lenience ℓ keeps a drafted token.

    Leviathan et al. 2023, appendix A.5.

    Parameters
    ----------
    lenience
        ℓ, by which q is multiplied before the comparison, in (0, 1]; 1 is lossless.

    Examples
    --------
    >>> round(lenience_acceptance([0.5, 0.5], [0.75, 0.25], lenience=0.8).item(), 4)
    0.875
    """
    (p, q), back = distributions(p=p, q=q)
    return back(_lenience_kept(p, q, lenience).sum(-1))


def lenience_output_law(p: Any, q: Any, lenience: float) -> Any:
    """Return the distribution of the token emitted under lenience ℓ, with the correction ``norm([p - ℓ·q]+)``.

    No token comes out more often than ``p(x)/ℓ``.

    Examples
    --------
    >>> [round(x, 4) for x in lenience_output_law([0.5, 0.5], [0.75, 0.25], lenience=0.8).tolist()]
    [0.625, 0.375]
    """
    (p, q), back = distributions(p=p, q=q)
    return back(_emitted(_lenience_kept(p, q, lenience), residual(p, lenience * q)))


def cactus_acceptance(p: Any, q: Any, delta: float) -> Any:
    """Return ``Σ min(q, h)``, the probability that Cactus keeps a drafted token.

    Hao & Mou 2026, section 2.2: ``h = min(1, p + √(2δ·p·(1 - p)))``.

    Parameters
    ----------
    delta
        The divergence that h may have from p, to second order; 0 is lossless.

    Examples
    --------
    >>> round(cactus_acceptance([0.5, 0.5], [0.75, 0.25], delta=0.02).item(), 4)
    0.85
    """
    (p, q), back = distributions(p=p, q=q)
    return back(q.minimum(_raised(p, delta)).sum(-1))


def cactus_output_law(p: Any, q: Any, delta: float) -> Any:
    """Return the distribution of the token that Cactus emits, whose correction depends on the token it replaces.

    Examples
    --------
    >>> [round(x, 4) for x in cactus_output_law([0.5, 0.5], [0.75, 0.25], delta=0.02).tolist()]
    [0.6, 0.4]
    """
    (p, q), back = distributions(p=p, q=q)
    h_x = _raised(p, delta)
    scale = ((1 - h_x) / (1 - p).clamp(min=torch.finfo(p.dtype).tiny))[..., :, None]
    h = torch.where(
        torch.eye(p.shape[-1], dtype=torch.bool, device=p.device), h_x[..., :, None], scale * p[..., None, :]
    )
    rest = residual(h, q[..., None, :].expand_as(h))
    rejected = (q - q.minimum(h_x))[..., None]
    return back(q.minimum(h_x) + (rejected * rest / rest.sum(-1, keepdim=True)).sum(-2))


def cactus_divergence(p: Any, delta: float) -> Any:
    """Return ``KL(h ‖ p)`` where the drafted token has the probability ``p``, a number: at most ``ln(1 + 2δ)``.

    Examples
    --------
    >>> [round(cactus_divergence(p, delta=0.1), 4) for p in (0.01, 0.5, 1 / 1.2)]
    [0.0489, 0.1036, 0.1823]
    """
    (p,), back = numbers(0, 1, p=p)
    h = _raised(p, delta)
    # Where p is 0 or 1, so is h.
    return back((torch.special.xlogy(h, h / p) + torch.special.xlogy(1 - h, (1 - h) / (1 - p))).nan_to_num(0.0))


def ensemble_acceptance(p: Any, q: Any, weight: float) -> Any:
    """Return ``1 - w·TV(p, q)``, the probability that the ensemble rule keeps a drafted token.

    DIVERSE; `assistant_ensemble_weight` of transformers: given x, ``min(1, 1 - w + w·p(x)/q(x))``.

    Parameters
    ----------
    weight
        The target's share w, in [0, 1]; 1 is lossless.

    Examples
    --------
    >>> ensemble_acceptance([0.5, 0.5], [0.75, 0.25], weight=0.5).item()
    0.875
    """
    (p, q), back = distributions(p=p, q=q)
    return back(1 - number("weight", weight, 0, 1) * (p - q).abs().sum(-1) / 2)


def ensemble_output_law(p: Any, q: Any, weight: float) -> Any:
    """Return the distribution of the ensemble's token, which is the mixture ``w·p + (1 - w)·q``.

    Examples
    --------
    >>> ensemble_output_law([0.5, 0.5], [0.75, 0.25], weight=0.5).tolist()
    [0.625, 0.375]
    """
    (p, q), back = distributions(p=p, q=q)
    weight = number("weight", weight, 0, 1)
    return back(weight * p + (1 - weight) * q)


def _ears_kept(p: Tensor, q: Tensor, beta: float) -> Tensor:
    tolerance = number("beta", beta, 0, 1) * (1 - p.amax(-1, keepdim=True))
    return q.minimum(p + tolerance * q) * (p > 0)


def _raised(p: Tensor, delta: float) -> Tensor:
    """Return Cactus's h(x) for every x."""
    return (p + (2 * number("delta", delta, 0, 100) * p * (1 - p)).clamp(min=0).sqrt()).clamp(max=1)


def _lenience_kept(p: Tensor, q: Tensor, lenience: float) -> Tensor:
    return q.minimum(p / number("lenience", lenience, _EPSILON, 1))


def _emitted(kept: Tensor, correction: Tensor) -> Tensor:
    """Return ``kept + (1 - Σ kept)·norm(correction)``."""
    return kept + (1 - kept.sum(-1, keepdim=True)) * correction / correction.sum(-1, keepdim=True)
