"""The kinds of labels, as ``lossy-assist mine --labels`` writes them."""

from __future__ import annotations

from dataclasses import fields

from ..errors import LossyValueError, nearest
from ..generation.spelling import read_settings, split
from .judge_labels import JudgeLabels
from .labelling import Labels
from .ratio_labels import RatioLabels

KINDS: dict[str, type[Labels]] = {each.name: each for each in (JudgeLabels, RatioLabels)}


def read_labels(text: str) -> Labels:
    """Read a kind of labels, ``KIND[:KEY=VALUE…]``.

    Examples
    --------
    >>> read_labels("judge:mismatches=8").mismatches
    8
    """
    name, *settings = split(text, ":")
    if name not in KINDS:
        raise LossyValueError(f"`labels` has to be one of {[*KINDS]}, but is {name!r}{nearest(name, KINDS)}")
    given, known = read_settings(settings, "labels"), [each.name for each in fields(KINDS[name])]
    if unknown := [key for key in given if key not in known]:
        raise LossyValueError(
            f"`labels` {name} takes the settings {known}, but has {unknown[0]!r}{nearest(unknown[0], known)}"
        )
    return KINDS[name](**given)
