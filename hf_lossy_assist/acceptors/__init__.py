"""Acceptance rules: one file per published rule, one line per rule here."""

from __future__ import annotations

from .base import Acceptor, DroppedHeads, RunAhead, decide
from .composed import AllOf, AnyOf
from .dropmatch import DropMatch
from .ears import Ears
from .ensemble import Ensemble
from .fly import Fly
from .fsd import Fsd
from .judge import Judge
from .lenience import Lenience
from .lossless import Lossless
from .near_top import NearTop
from .relaxed import Relaxed
from .sprinter import Sprinter
from .thresholds import Thresholds
from .topk import TopK
from .typical import Typical

REGISTRY: dict[str, type[Acceptor]] = {
    rule.name: rule
    for rule in (
        Lossless,
        DropMatch,
        Ears,
        TopK,
        Typical,
        Relaxed,
        Ensemble,
        Judge,
        Sprinter,
        Thresholds,
        NearTop,
        Lenience,
        Fsd,
        Fly,
    )
}


def register(rule: type[Acceptor]) -> type[Acceptor]:
    """Make a rule of your own available as ``lossy_mode=rule.name``; usable as a class decorator.

    Raises
    ------
    LossyValueError
        When another rule already has that name.
    """
    from ..errors import LossyValueError

    if REGISTRY.setdefault(rule.name, rule) is not rule:
        raise LossyValueError(f"`name` of a rule has to be new, but {rule.name!r} is {REGISTRY[rule.name].__name__}")
    return rule


__all__ = [
    "REGISTRY",
    "Acceptor",
    "AllOf",
    "AnyOf",
    "DropMatch",
    "DroppedHeads",
    "Ears",
    "Ensemble",
    "Fly",
    "Fsd",
    "Judge",
    "Lenience",
    "Lossless",
    "NearTop",
    "Relaxed",
    "RunAhead",
    "Sprinter",
    "Thresholds",
    "TopK",
    "Typical",
    "decide",
    "register",
]
