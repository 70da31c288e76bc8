"""Closed forms of what speculative decoding yields. No model runs.

``p`` is the target's distribution of shape ``(..., V)``, ``q`` the draft's, ``alpha`` the probability that a drafted
token is kept, ``gamma`` the number of drafted tokens per round. Arguments are arrays, tensors, lists or numbers;
results are of the same kind (tensors for lists, floats for numbers). Values out of range, and rows that do not sum to
1, raise :class:`~hf_lossy_assist.LossyValueError`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .errors import LossyValueError
from .values import bounded

_Read = tuple[list[Tensor], Callable[[Tensor], Any]]


def lossless_acceptance(p: Any, q: Any) -> Any:
    """Return ``Σ min(p, q)``, the probability that the lossless rule keeps a drafted token.

    Leviathan et al. 2023, corollary 3.6: one minus the total variation between p and q.

    Examples
    --------
    >>> lossless_acceptance([0.5, 0.5], [0.75, 0.25]).item()
    0.75
    """
    (p, q), back = _distributions(p, q)
    return back(p.minimum(q).sum(-1))


def ears_acceptance(p: Any, q: Any, beta: float) -> Any:
    """Return ``Σ min(q, p + β·(1 - max p)·q)``, the probability that EARS keeps a drafted token.

    Sun et al., "EARS", section 3.2. The tolerance β is in [0, 1]; 0 is lossless. EARS never keeps a token that a logits
    processor forbids the target.

    Examples
    --------
    >>> round(ears_acceptance([0.5, 0.5], [0.75, 0.25], beta=0.1).item(), 4)
    0.7875
    """
    (p, q), back = _distributions(p, q)
    tolerance = _number("beta", beta, 0, 1) * (1 - p.amax(-1, keepdim=True))
    return back((q.minimum(p + tolerance * q) * (p > 0)).sum(-1))


def expected_tokens_per_round(alpha: Any, gamma: int) -> Any:
    """Return ``(1 - α^(γ+1)) / (1 - α)``, the mean number of tokens that a round emits; ``γ + 1`` at α = 1.

    Leviathan et al. 2023, equation 1, for α in [0, 1], of any shape, and γ >= 0. It counts the drafted tokens that are
    kept and the correction or bonus token.

    Examples
    --------
    >>> expected_tokens_per_round(0.5, gamma=2)
    1.75
    """
    (alpha,), back = _rates(alpha=alpha)
    total = torch.ones_like(alpha)
    for _ in range(_number("gamma", gamma, 0, integer=True)):  # Horner's scheme does not cancel near α = 1.
        total = total * alpha + 1
    return back(total)


def sprinter_expected_run_length(tpr: Any, fpr: Any, r: int, max_draft: int | None = None) -> Any:
    """Return ``E[N] = (a - a^r)/(1 - a) + a^r/(1 - b)``, the mean number of tokens that SPRINTER commits in a run.

    SPRINTER, theorem 2. The draft's first r tokens are acceptable and the others are not; the verifier commits them
    with probability a and b. The limit at a = 1 is ``r - 1 + 1/(1 - b)``; a run that never ends gives infinity.

    Parameters
    ----------
    tpr, fpr
        a and b in [0, 1]; numbers, or arrays of shapes that broadcast to ``(...)``.
    r
        How many acceptable tokens come first.
    max_draft
        Return ``E[min(N, max_draft)]`` instead, which is always finite.

    Examples
    --------
    >>> sprinter_expected_run_length(0.5, 0.5, r=1)
    1.0
    >>> sprinter_expected_run_length(1, 1, r=5), sprinter_expected_run_length(1, 1, r=5, max_draft=64)
    (inf, 64.0)
    """
    (tpr, fpr), back = _rates(tpr=tpr, fpr=fpr)
    bound = None if max_draft is None else _number("max_draft", max_draft, 1, integer=True)
    return back(_run_length(tpr, fpr, _number("r", r, 0, integer=True), bound))


def sprinter_stopping_time(tpr: Any, fpr: Any, r: int, t_draft: float) -> Any:
    """Return ``t_draft·((1 - a^r)/(1 - a) + a^r/(1 - b))``, the mean time until SPRINTER asks the target.

    SPRINTER, theorem 3, with ``t_draft`` the time of one draft forward and the other arguments as in
    :func:`sprinter_expected_run_length`. It counts the last drafted token, which is not committed, and neglects the
    verifier's time.

    Examples
    --------
    >>> sprinter_stopping_time(1, 0, r=5, t_draft=0.5)
    3.0
    """
    (tpr, fpr), back = _rates(tpr=tpr, fpr=fpr)
    return back(_number("t_draft", t_draft, 0) * (_run_length(tpr, fpr, _number("r", r, 0, integer=True), None) + 1))


def _run_length(tpr: Tensor, fpr: Tensor, r: int, bound: int | None) -> Tensor:
    """Return E[N] as the sum over i >= 1 of ``P(N >= i) = a^min(i, r)·b^max(i - r, 0)``, up to the bound if any."""
    i = torch.arange(1, 1 + (r if bound is None else bound), device=tpr.device)
    reached = (tpr[..., None] ** i.clamp(max=r) * fpr[..., None] ** (i - r).clamp(min=0)).sum(-1)
    beyond = tpr**r * fpr if bound is None else tpr.new_zeros(())
    return reached + torch.where(beyond > 0, beyond / (1 - fpr), 0)


def _tensors(**given: Any) -> _Read:
    """Return the arguments as tensors, and a function that converts a result back to their kind."""
    tensors = []
    for name, values in given.items():
        try:
            tensor = torch.as_tensor(values if isinstance(values, Tensor) else np.asarray(values))
        except (TypeError, ValueError, RuntimeError) as error:
            raise LossyValueError(f"`{name}` has to be a number, an array or a tensor, but is {values!r}") from error
        if tensor.dtype == torch.bool or tensor.is_complex():
            raise LossyValueError(f"`{name}` has to hold real numbers, but has the type {tensor.dtype}")
        typed = tensor.is_floating_point() and isinstance(values, Tensor | np.ndarray)
        tensors.append(tensor if typed else tensor.double())
    if all(isinstance(values, int | float | np.number) for values in given.values()):
        return tensors, Tensor.item
    kind = next((kind for kind in (Tensor, np.ndarray) if any(isinstance(x, kind) for x in given.values())), Tensor)
    return tensors, lambda result: result if kind is Tensor else result.numpy()[()]


def _distributions(p: Any, q: Any) -> _Read:
    tensors, back = _tensors(p=p, q=q)
    for name, probs in zip("pq", tensors, strict=True):
        # Half precision keeps about three digits, and a softmax over 100,000 tokens adds up its errors.
        sums = probs.double().sum(-1)
        if probs.ndim == 0 or not bool((probs >= 0).all()) or not bool(((sums - 1).abs() <= 1e-2).all()):
            raise LossyValueError(
                f"`{name}` has to hold probabilities of shape (..., V) that add up to 1 along the last dimension, but "
                f"has the sums {sums.flatten()[:4].tolist()}, the shape {tuple(probs.shape)} and a smallest entry of "
                f"{min(probs.flatten().tolist(), default=0):g}; apply a softmax first"
            )
    sizes = enumerate(zip(*(reversed(probs.shape) for probs in tensors), strict=False))
    if any(a != b and (place == 0 or 1 not in (a, b)) for place, (a, b) in sizes):
        shapes = " and ".join(str(tuple(probs.shape)) for probs in tensors)
        raise LossyValueError(f"`p` and `q` have to broadcast over one vocabulary, but have the shapes {shapes}")
    return tensors, back


def _rates(**given: Any) -> _Read:
    tensors, back = _tensors(**given)
    for (name, values), rates in zip(given.items(), tensors, strict=True):
        if not bool(((rates >= 0) & (rates <= 1)).all()):
            raise LossyValueError(f"`{name}` has to lie in [0, 1], but is {values!r}")
    return tensors, back


def _number(name: str, value: Any, low: float, high: float = math.inf, *, integer: bool = False) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    bounded(low, high, integer=integer).check(name, value)
    return value
