"""SPRINTER: a trained head on the draft model commits tokens without the target."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..heads import VerifierHead
from .composed import HeadRule
from .registry import Formula, register, setting


@register
@dataclass(frozen=True)
class Sprinter(HeadRule):
    """Commit drafted tokens unverified while ``P(acceptable | draft state) > threshold``; the target decides the next.

    SPRINTER (section 3, algorithm 2): sequential approximate verification. The base rule decides the first token that
    the head rejects, and every ``max_draft``-th in a row. There is no bonus token: with one, the output's distribution
    would not be ``(1 - FPR) p + FPR q`` (theorem 1).

    Parameters
    ----------
    head
        The trained head, from ``lossy_head``.
    threshold
        The probability of being acceptable above which a token is committed; by default the head's own.
    max_draft
        The target decides at least every ``max_draft``-th token.
    base
        The rule that decides the other tokens. In a list of rules the rest of the list does, and this is None.

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
    paper = "Zhong et al. 2025 (SPRINTER, arXiv:2502.04557), section 3, algorithm 2"
    formula = Formula(
        "A trained head reads the draft's state. While it finds tokens acceptable, they are committed "
        "without asking the target.",
        r"\sigma(w \cdot h_\text{draft} + b) > \tau \text{ commits } x \text{ unverified; the target decides the first"
        r" other token}",
        r"\text{the base rule's; no bonus token}",
        ({"false_positive_rate": 0.2}, {"false_positive_rate": 0.5}, {"false_positive_rate": 0.8}),
    )
    needs = frozenset({"draft_probs"})  # the head reads the states of a draft model
    lossless_at = {"threshold": 1.0}

    @property
    def unverified_drafting(self) -> Sprinter:
        """The rule itself, whose head commits tokens without the target."""
        return self
