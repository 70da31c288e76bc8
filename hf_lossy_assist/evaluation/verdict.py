"""What an evaluation shows, in words: a sentence for each mode, and the fastest rule or those that are tied."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from .quality import Interval, smallest_loss
from .scores import ModeScore
from .tables import figure

BASES = ("lossless", "plain", "stock", "reference")
"""The baselines that a rule's speed is compared with, the first that is there."""


def base_of(label: str, fastest: Mapping[str, str], settings: Collection[str] = ()) -> str | None:
    """Return the name of the baseline that a mode is compared with; that of ``settings`` of a baseline is plain."""
    names = ("plain", "reference") if label in settings else BASES
    return next((name for name in names if fastest.get(name, label) != label), None)


def sentence(row: ModeScore, base: str | None, against: str, reference: str, *, graded: bool = False) -> str:
    """Return what a mode brings: its speed beside the baseline ``base``, whose mode is ``against``, and its losses.

    Where answers are right or wrong and not ``graded``, the number of problems alone bounds the loss that they show.
    """
    name = f"`{row.label}`{', which is lossless here,' if row.lossless else ''}"
    times = None if base is None or row.speed is None else row.speed.times.get(base)
    if row.speed is None:
        speed = f"{name} was not timed"
    elif times is None:
        speed = f"{name} writes {figure(row.tokens_per_second)} tokens a second"
    elif row.speed.few:
        speed = f"{name} was called too few times to tell its speed"
    elif times.low <= 1 <= times.high:
        speed = f"{name} is tied with `{against}` in speed, {times} ×"
    elif times.low > 1:
        speed = f"{name} is {times} × as fast as `{against}`"
    else:
        speed = f"{name} is slower than `{against}`, {times} × as fast"
    beside = "" if against == reference else f" against `{reference}`"
    if row.score is None:
        return f"{speed}; its answers were not scored."
    if row.high < 0:
        joined = "but" if " as fast as " in speed else "and"
        lost = Interval(*(-100 * end for end in (row.difference, row.high, row.low)))
        return f"{speed}, {joined} it loses {lost:.1f} points{beside}."
    if (least := smallest_loss(row.n)) is None:
        return f"{speed}, and {row.n} problem{'s are' if row.n > 1 else ' is'} too few to show a loss{beside}."
    least = max(least * (not graded), (row.high - row.low) / 2)  # scattered answers show less
    return f"{speed}, and no loss{beside} is shown on {row.n} problems, which can show {100 * least:.2g} points."


def conclusion(rules: Sequence[ModeScore], base: str, against: str) -> str:
    """Return which of several rules is the fastest with no loss shown; those whose intervals meet are tied."""
    known = [row for row in rules if row.speed.times[base].low > 1]
    if not known:
        return f"No rule is shown to be faster than `{against}`."
    scored = all(row.score is not None for row in known)
    good = [row for row in known if row.high >= 0]
    if not good:
        return f"Every rule that is shown to be faster than `{against}` loses points."
    best = max((row.speed.times[base] for row in good), key=lambda times: times.value)
    tied = [f"`{row.label}`" for row in good if row.speed.times[base].high >= best.low]
    of = " of the rules with no loss shown" if scored else ""
    return f"Tied as the fastest{of}: {', '.join(tied)}." if len(tied) > 1 else f"The fastest{of} is {tied[0]}."
