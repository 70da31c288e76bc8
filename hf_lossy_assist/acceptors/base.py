"""The base class of acceptance rules, and the decision of a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..messages import Decision, Verification
from .registry import settings_of

if TYPE_CHECKING:
    from ..decoding.limits import LosslessPositions
    from ..heads.verifier_head import VerifierHead


AUTO = "auto"
"""The dropout that is chosen by its effect on a call's own prompt."""


@dataclass(frozen=True)
class DroppedHeads:
    """A request for ``num_paths`` passes of the LM head over inputs dropped with probability ``dropout``.

    :data:`AUTO` leaves the probability to what it does to the head at hand.
    """

    num_paths: int
    dropout: float | str


@dataclass(frozen=True)
class RunAhead:
    """A request that the draft commit tokens without the target while ``head`` scores them above ``threshold``.

    At most ``max_draft - 1`` in a row: the target decides the next one. ``rule`` is the name of the rule that asks.
    """

    head: VerifierHead
    threshold: float
    max_draft: int
    rule: str = ""


@dataclass(frozen=True)
class Acceptor(ABC):
    """A published acceptance rule; its fields are the rule's settings.

    A rule answers two questions: which drafted tokens it keeps, each judged on its own, and from which distribution
    the token is taken that replaces the first one it does not keep. Fields that are declared with
    :func:`~hf_lossy_assist.acceptors.setting` are checked when a rule is made; a ``__post_init__`` of one's own calls
    this class's.

    Attributes
    ----------
    name
        The value of ``lossy_mode`` that selects the rule.
    paper
        Where the rule comes from: the paper and its section, or the system.
    needs
        What the rule reads besides the target's logits: of ``"draft_probs"``, ``"draft_or_point_mass"``,
        ``"hidden"``, ``"draft_hidden"`` and ``"dropped_heads"``. The first is for a rule that has no meaning without
        the draft's distribution, the second for one to which a drafter that gives none was certain of its tokens. A
        rule whose settings decide what it reads makes it a property.
    usual
        Settings to measure the rule with, where its defaults are lossless or unusual.
    lossless_at
        Settings at which the rule is lossless; empty for a rule that always is.
    lossless_when_sampling
        Whether these are lossless for sampling too, or only for greedy decoding.
    relaxes
        Where the rule differs from the lossless one: ``"both"``, or only ``"sampling"`` or ``"greedy"`` decoding, of a
        rule that relaxes something the other does not have.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset()
    usual: ClassVar[Mapping[str, Any]] = {}
    lossless_at: ClassVar[Mapping[str, Any]] = {}
    lossless_when_sampling: ClassVar[bool] = False
    relaxes: ClassVar[str] = "both"

    def __post_init__(self) -> None:
        for each in settings_of(type(self)):
            each.check(self)

    @property
    def dropped_heads(self) -> DroppedHeads | None:
        """The dropped heads that the rule reads, for a rule that needs them."""
        return None

    @property
    def run_ahead(self) -> RunAhead | None:
        """How far the rule lets the draft run without the target, for a rule that does."""
        return None

    @property
    def lacks_base(self) -> bool:
        """Whether the rule only adds to what the last rule of its list keeps."""
        return False

    def without_base(self) -> Acceptor:
        """Return the rule as it stands in a list above another, which then is its base."""
        return self

    def check_models(self, target: PreTrainedModel, draft: PreTrainedModel | None) -> None:
        """Raise :class:`LossyError` where a trained head of the rule does not belong to the models."""
        return

    def has_effect(self, do_sample: bool) -> bool:
        """Tell whether there is anything in this way of decoding that the rule relaxes."""
        return self.relaxes in ("both", "sampling" if do_sample else "greedy")

    def is_lossless(self, do_sample: bool) -> bool:
        """Tell whether the rule, as configured, leaves the distribution of the output as it is."""
        if not self.has_effect(do_sample):
            return True
        values = {key: getattr(self, key) for key in self.lossless_at}
        return (self.lossless_when_sampling or not do_sample) and values == dict(self.lossless_at)

    @abstractmethod
    def keep(self, v: Verification) -> Tensor:
        """Return ``(B, n)`` whether each drafted token is kept, given that all before it are."""

    def correction(self, v: Verification, at: Tensor) -> Tensor:
        """Return the distribution ``(B, V)`` of the token that replaces the drafted one at positions ``at`` ``(B,)``.

        Weights to draw from when sampling, scores to maximise when greedy; as for the lossless rule by default.
        """
        return v.residual_distribution(at)

    def charge(self, v: Verification) -> Tensor | None:
        """Return ``(B, n)`` what keeping each token takes from a budget over the whole text; None without a budget.

        Whoever keeps a token: ``v.spent`` is what all tokens of the text so far have cost it.
        """
        return None

    def quantities(self, v: Verification) -> Mapping[str, Tensor]:
        """Return ``(B, n)`` what the rule compares for each drafted token, by its name: for whoever inspects a run.

        Nothing may be drawn here. By default p(x) / q(x), and the random number that it is compared with.
        """
        return {"p/q": v.ratio, **({"u": v.u} if v.do_sample else {})}

    def credits(self, v: Verification) -> dict[str, Tensor]:
        """Return ``(B, n)`` per rule which tokens are kept on its account; a token is credited to one rule only.

        A rule with a base is credited with what it alone keeps, and the base with all that it would keep anyway.
        """
        return {self.name: self.keep(v)}

    def check_mode(self, do_sample: bool, longest: int | None = None) -> str | None:
        """Return a warning of a rule that does nothing in this way of decoding, or None.

        ``longest`` is how many tokens a draft has at most, where that is known.
        """
        if self.has_effect(do_sample):
            return None
        here, there = ("sampling", "False") if do_sample else ("greedy decoding", "True")
        other = "'ears' or 'cactus'" if do_sample else "'dropmatch' or 'topk'"
        return (
            f"`lossy_mode` {self.name!r} changes nothing in {here} (`do_sample={do_sample}`): the run is lossless. "
            f"Pass `do_sample={there}`, or choose a rule that has something to relax here, e.g. {other}."
        )


def judge_tokens(
    acceptor: Acceptor, v: Verification, positions: LosslessPositions | None
) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
    """Judge every drafted token on its own.

    Returns
    -------
    tuple
        ``(B, n)`` which are kept; which on each rule's account; and where ``positions`` had the lossless rule decide,
        or None for nowhere.
    """
    credits = acceptor.credits(v)
    keep = reduce(torch.logical_or, credits.values())
    strict = None if positions is None else positions.over(keep, v.lossless)
    if strict is not None:
        keep = torch.where(strict, v.lossless, keep)
        credits = {rule: mask & ~strict for rule, mask in credits.items()}
        credits["lossless"] = credits.get("lossless", torch.zeros_like(strict)) | (v.lossless & strict)
    if v.drafted is not None:
        keep = keep & v.drafted
    return keep, credits, strict


def correction_at(acceptor: Acceptor, v: Verification, at: Tensor, strict: Tensor | None) -> Tensor:
    """Return the correction ``(B, V)`` at positions ``at`` ``(B,)``, the lossless one where ``strict`` says so."""
    replaced = acceptor.correction(v, at)
    if strict is not None:
        replaced = torch.where(strict.gather(-1, at[:, None]), v.residual_distribution(at), replaced)
    return replaced


def decide(acceptor: Acceptor, v: Verification, positions: LosslessPositions | None = None) -> Decision:
    """Apply a rule to one round: keep a prefix of the draft, then choose the token that follows it.

    Where ``positions`` says so, the lossless rule decides instead.
    """
    n = len(v)
    if n == 0:
        none = v.tokens.bool()
        last = torch.zeros(len(none), dtype=torch.long, device=v.logits.device)
        return Decision(none, last, v.choose(v.target_distribution(last)), none, {})
    keep, credits, strict = judge_tokens(acceptor, v, positions)
    prefix = keep.cumprod(-1)
    n_accepted = prefix.sum(-1)
    charge = acceptor.charge(v)
    if charge is not None:
        charge = charge.where(prefix.bool(), 0.0).sum(-1)
    if strict is None and not v.do_sample and type(acceptor).correction is Acceptor.correction:
        # The lossless correction and the bonus are both the target's best token, which is known already.
        next_token = v.best.gather(-1, n_accepted.unsqueeze(-1)).squeeze(-1)
        return Decision(keep, n_accepted, next_token, v.lossless, credits, charge=charge)
    at = n_accepted.clamp(max=n - 1)
    replaced = correction_at(acceptor, v, at, strict)
    last = torch.full_like(at, n) if v.lengths is None else v.lengths
    following = torch.where((n_accepted < last)[:, None], replaced, v.target_distribution(last))
    return Decision(keep, n_accepted, v.choose(following), v.lossless, credits, charge=charge)
