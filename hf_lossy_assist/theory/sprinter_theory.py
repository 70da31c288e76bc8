"""SPRINTER's theorems: the distribution of its text, and the length of its runs.

"Approximate verification" (SPRINTER). A verifier commits a drafted token that is acceptable, ``q(x) <= p(x)``,
with probability a, its true-positive rate (TPR), and one that is not with probability b, its false-positive
rate (FPR). The first token that it does not commit is decided by the lossless rule.

Theorems 1 and 7 hold for labels at λ = 1 and for a verifier whose errors do not depend on the token within a
class; theorems 2 and 3 take a draft whose first r tokens are acceptable and whose others are not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .arguments import count, distributions, number, numbers


def sprinter_output_law(p: Any, q: Any, fpr: float) -> Any:
    """Return the distribution of SPRINTER's token, ``(1 - b)·p + b·q`` (theorem 1).

    Parameters
    ----------
    fpr
        b, in [0, 1]; 0 is lossless.

    Examples
    --------
    >>> sprinter_output_law([0.5, 0.5], [0.75, 0.25], fpr=0.5).tolist()
    [0.625, 0.375]
    """
    (p, q), back = distributions(p=p, q=q)
    fpr = number("fpr", fpr, 0, 1)
    return back((1 - fpr) * p + fpr * q)


def sprinter_total_variation(p: Any, q: Any, fpr: float) -> Any:
    """Return ``b·TV(p, q)``, how far SPRINTER's distribution is from the target's (theorem 1).

    Examples
    --------
    >>> sprinter_total_variation([0.5, 0.5], [0.75, 0.25], fpr=0.5).item()
    0.125
    """
    (p, q), back = distributions(p=p, q=q)
    return back(number("fpr", fpr, 0, 1) * (p - q).abs().sum(-1) / 2)


def sprinter_acceptance(p: Any, q: Any, fpr: float) -> Any:
    """Return ``1 - (1 - b)·TV(p, q)``, the share of drafted tokens that stay (theorem 7).

    Whether the verifier commits them or the target keeps them.

    Examples
    --------
    >>> sprinter_acceptance([0.5, 0.5], [0.75, 0.25], fpr=0.5).item()
    0.875
    """
    (p, q), back = distributions(p=p, q=q)
    return back(1 - (1 - number("fpr", fpr, 0, 1)) * (p - q).abs().sum(-1) / 2)


def sprinter_run_length_law(tpr: Any, fpr: Any, r: int, longest: int) -> Any:
    """Return ``P(N = i)`` for i = 0 … ``longest``, with N the tokens committed in a run (theorem 2).

    ``a^i·(1 - a)`` for i < r, ``a^r·b^(i-r)·(1 - b)`` for i >= r.

    The result has the shape ``(..., longest + 1)``, and is a tensor if tpr and fpr are numbers.

    Parameters
    ----------
    tpr, fpr
        a and b in [0, 1]; numbers, or arrays of shapes that broadcast to ``(...)``.
    r
        How many acceptable tokens come first.
    longest
        The largest i. The rest of the probability, up to 1, is that of longer runs.

    Examples
    --------
    >>> sprinter_run_length_law(0.5, 0.25, r=1, longest=2).tolist()
    [0.5, 0.375, 0.09375]
    """
    (tpr, fpr), back = _rates(tpr, fpr)
    reached = _at_least(tpr, fpr, count("r", r), count("longest", longest) + 1)
    distribution = reached[..., :-1] - reached[..., 1:]
    return distribution if distribution.ndim == 1 else back(distribution)


def sprinter_expected_run_length(tpr: Any, fpr: Any, r: int, max_draft: int | None = None) -> Any:
    """Return ``E[N] = (a - a^r)/(1 - a) + a^r/(1 - b)``, the tokens committed in a run on average (theorem 2).

    The formula is for r >= 1; here r = 0, a draft with no acceptable token, gives its ``b/(1 - b)``. Limits:
    at a = 1 ``r - 1 + 1/(1 - b)``; at b = 1 infinity, unless no run gets past the acceptable tokens.

    Parameters
    ----------
    tpr, fpr
        a and b in [0, 1]; numbers, or arrays of shapes that broadcast to ``(...)``.
    r
        How many acceptable tokens come first.
    max_draft
        With a bound, ``E[min(N, max_draft)]`` instead, which is finite everywhere.

    Examples
    --------
    >>> sprinter_expected_run_length(0.5, 0.5, r=1)
    1.0
    >>> sprinter_expected_run_length(1, 0, r=5)
    5.0
    >>> sprinter_expected_run_length(1, 1, r=5), sprinter_expected_run_length(1, 1, r=5, max_draft=64)
    (inf, 64.0)
    """
    bound = None if max_draft is None else count("max_draft", max_draft, 1)
    (tpr, fpr), back = _rates(tpr, fpr)
    return back(_expected(tpr, fpr, count("r", r), bound))


def sprinter_stopping_time(tpr: Any, fpr: Any, r: int, t_draft: float, max_draft: int | None = None) -> Any:
    """Return ``t_draft·((1 - a^r)/(1 - a) + a^r/(1 - b))``, the time until the target is asked (theorem 3).

    That is ``t_draft·(E[N] + 1)``: the token that is not committed is drafted too. The verifier's own time is
    neglected, as in the paper.

    Parameters
    ----------
    tpr, fpr, r
        As in :func:`sprinter_expected_run_length`.
    t_draft
        Time of one draft forward; the result has its unit.
    max_draft
        With a bound, at most so many tokens are drafted.

    Examples
    --------
    >>> sprinter_stopping_time(1, 0, r=5, t_draft=0.5)
    3.0
    >>> sprinter_stopping_time(1, 1, r=5, t_draft=0.5, max_draft=64)
    32.0
    """
    bound = None if max_draft is None else count("max_draft", max_draft, 1) - 1
    (tpr, fpr), back = _rates(tpr, fpr)
    return back(number("t_draft", t_draft, 0) * (_expected(tpr, fpr, count("r", r), bound) + 1))


def _rates(tpr: Any, fpr: Any) -> tuple[tuple[Tensor, ...], Any]:
    rates, back = numbers(0, 1, tpr=tpr, fpr=fpr)
    return torch.broadcast_tensors(*rates), back


def _at_least(tpr: Tensor, fpr: Tensor, r: int, longest: int) -> Tensor:
    """Return ``P(N >= i) = a^min(i, r)·b^max(i - r, 0)`` for i = 0 … ``longest``, ``(..., longest + 1)``."""
    i = torch.arange(longest + 1, device=tpr.device)
    # 0^0 is 1 in torch, as needed here.
    return tpr[..., None] ** i.clamp(max=r) * fpr[..., None] ** (i - r).clamp(min=0)


def _expected(tpr: Tensor, fpr: Tensor, r: int, bound: int | None) -> Tensor:
    """Return ``E[N]`` as the sum of ``P(N >= i)`` over i >= 1, up to the bound if there is one."""
    if bound is not None:
        return _at_least(tpr, fpr, r, bound)[..., 1:].sum(-1)
    reached = _at_least(tpr, fpr, r, r)
    beyond = reached[..., -1] * fpr
    return reached[..., 1:].sum(-1) + torch.where(beyond > 0, beyond / (1 - fpr), 0)
