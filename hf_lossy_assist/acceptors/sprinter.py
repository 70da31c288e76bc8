"""SPRINTER: a trained head on the draft model lets tokens pass without the target."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ..heads import VerifierHead
from .base import RunAhead
from .composed import HeadRule
from .registry import register, setting


@register
@dataclass(frozen=True)
class Sprinter(HeadRule):
    """Commit drafted tokens unseen while ``P(acceptable | draft state) > threshold``; the target decides the next.

    SPRINTER (section 3, algorithm 2): sequential approximate verification. The first token that the head
    rejects, and every ``max_draft``-th in a row, is decided by the base rule; all before it stay. No bonus token:
    with one, the output's distribution would not be ``(1 - FPR) p + FPR q`` (theorem 1).

    Parameters
    ----------
    head
        The trained head, from ``lossy_head``.
    threshold
        The probability of being acceptable above which a token passes; the one in the head's configuration by
        default, which is 0.5 unless it was published with another.
    max_draft
        The target decides at least every ``max_draft``-th token.
    base
        The rule that decides them. In a list of rules it is the rest of the list, and this is None.

    Examples
    --------
    >>> from hf_lossy_assist import pairs
    >>> from hf_lossy_assist.acceptors import Sprinter
    >>> head = pairs.load("arithmetic").heads["verifier"]
    >>> Sprinter(head).threshold, Sprinter(head, threshold=0.9).threshold
    (0.95, 0.9)
    """

    head: VerifierHead = field(metadata={"head": VerifierHead})
    max_draft: int = setting(64, 1, integer=True)

    name = "sprinter"
    paper = "SPRINTER, section 3, algorithm 2"
    needs = frozenset({"draft_probs"})  # of a draft model: its states are what the head reads
    lossless_at: ClassVar = {"threshold": 1.0}

    @property
    def run_ahead(self) -> RunAhead:
        return RunAhead(self.head, self.threshold, self.max_draft, self.name)
