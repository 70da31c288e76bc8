"""Rounds of a drafter and a target: tokens, seconds, and the best number of drafted tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import LossyValueError
from .arguments import count, number, numbers

Seconds = float | tuple[float, float] | Callable[[int], float]
"""How long a target forward over n tokens takes: always the same; ``(base, per_token)`` for
``base + per_token·n``; or a function of n."""


def expected_tokens_per_round(alpha: Any, gamma: int) -> Any:
    """Return ``(1 - α^(γ+1)) / (1 - α)``, the tokens that a round emits on average.

    Leviathan et al. 2023, equation 1. The drafted tokens kept and one more, the correction or bonus. Positions
    are kept independently with one probability α; at α = 1 the limit is ``γ + 1``.

    Parameters
    ----------
    alpha
        α in [0, 1]: a number, or an array or tensor of any shape.
    gamma
        γ >= 0, the drafted tokens per round.

    Examples
    --------
    >>> expected_tokens_per_round(0.5, gamma=2)
    1.75
    >>> expected_tokens_per_round(1, gamma=7)
    8.0
    """
    (alpha,), back = numbers(0, 1, alpha=alpha)
    total = alpha.new_ones(alpha.shape)
    for _ in range(count("gamma", gamma)):  # as Horner does: no cancellation near α = 1
        total = total * alpha + 1
    return back(total)


def expected_speedup(alpha: float, gamma: int, t_draft: float, t_target: Seconds, t_head: float = 0.0) -> float:
    """Return how many times faster than the target alone a round of γ drafted tokens is on average.

    ``E[tokens per round] · T(1) / (γ·t_draft + T(γ + 1) + t_head)``, with ``T(n)`` the time of a target forward
    over n tokens. With T constant and ``t_head = 0``, theorem 3.8 of Leviathan et al. 2023.

    Parameters
    ----------
    alpha
        The probability that a drafted token is kept, in [0, 1].
    gamma
        Drafted tokens per round; 0 is the target alone, whose speedup is 1.
    t_draft
        Time of one draft forward. Any unit, the same for all three.
    t_target
        Time of a target forward: a number, ``(base, per_token)``, or a function of the number of tokens.
    t_head
        What a rule adds to every round that drafts, e.g. a judge head, or the dropped heads of DropMatch.

    Examples
    --------
    >>> round(expected_speedup(0.8, gamma=5, t_draft=0.1, t_target=1.0), 3)
    2.46
    >>> round(expected_speedup(0.8, gamma=5, t_draft=0.1, t_target=(0.9, 0.1)), 3)
    1.845
    """
    alpha = number("alpha", alpha, 0, 1)
    gamma = count("gamma", gamma)
    t_draft, t_head = number("t_draft", t_draft, 0), number("t_head", t_head, 0)
    if gamma == 0:
        t_head = 0.0
    verify = _verification_time(t_target)
    return expected_tokens_per_round(alpha, gamma) * verify(1) / (gamma * t_draft + verify(gamma + 1) + t_head)


def best_gamma(
    alpha: float, t_draft: float, t_target: Seconds, t_head: float = 0.0, *, lowest: int = 0, highest: int = 64
) -> int:
    """Return the γ of the largest :func:`expected_speedup`; the smallest of several.

    Plain arithmetic on floats, for a loop that asks after every round.

    Parameters
    ----------
    alpha, t_draft, t_target, t_head
        As in :func:`expected_speedup`.
    lowest, highest
        The γ to choose from. With the default ``lowest=0``, the answer 0 says that the target alone is faster.

    Examples
    --------
    >>> best_gamma(0.8, t_draft=0.1, t_target=1.0)
    6
    >>> best_gamma(0.05, t_draft=0.1, t_target=1.0)
    0
    """
    alpha = number("alpha", alpha, 0, 1)
    t_draft, t_head = number("t_draft", t_draft, 0), number("t_head", t_head, 0)
    lowest, highest = count("lowest", lowest), count("highest", highest)
    if lowest > highest:
        raise LossyValueError(f"`lowest` has to be at most `highest`, but they are {lowest} and {highest}")
    verify = _verification_time(t_target)
    best, best_rate = lowest, -1.0
    tokens = power = 1.0
    for gamma in range(highest + 1):
        if gamma >= lowest:
            rate = tokens / (gamma * t_draft + verify(gamma + 1) + (t_head if gamma else 0.0))
            if rate > best_rate:
                best, best_rate = gamma, rate
        power *= alpha
        tokens += power
    return best


def _verification_time(t_target: Seconds) -> Callable[[int], float]:
    """Return the time of a target forward as a function of its tokens."""
    if callable(t_target):
        return lambda n: _positive(f"t_target({n})", t_target(n))
    base, per_token = t_target if isinstance(t_target, tuple) and len(t_target) == 2 else (t_target, 0.0)
    base, per_token = number("t_target", base, 0), number("t_target", per_token, 0)
    _positive("t_target", base + per_token)
    return lambda n: base + per_token * n


def _positive(name: str, value: Any) -> float:
    if number(name, value, 0) == 0:
        raise LossyValueError(f"`{name}` has to be > 0, but is {value!r}")
    return value
