"""The base class of acceptance rules, and the decision of a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..core.distributions import drawable
from ..core.limits import LosslessPositions
from ..core.messages import Decision, Verification
from .registry import Formula, setting, settings_of

AUTO = "auto"
"""The dropout chosen by its effect on a call's prompt."""


@dataclass(frozen=True)
class DroppedHeads:
    """A request for ``num_paths`` passes of the LM head over inputs dropped with probability ``dropout``.

    :data:`AUTO` chooses the probability by its effect on the prompt.
    """

    num_paths: int
    dropout: float | str


@dataclass(frozen=True)
class Acceptor(ABC):
    """A published acceptance rule; its fields are the rule's settings.

    A rule decides which drafted tokens it keeps, each on its own, and from which distribution the correction is taken:
    the token in place of the first one that it rejects. Fields declared with
    :func:`~hf_lossy_assist.acceptors.setting` are checked on construction; a ``__post_init__`` of a subclass has to
    call this one.

    Attributes
    ----------
    name
        The value of ``lossy_mode`` that selects the rule.
    paper
        The source of the rule: a paper and its section, or a system.
    formula
        The rule in LaTeX, for the documentation.
    usual
        Settings to measure the rule with, if its defaults are lossless or unusual.
    lossless_at
        Settings at which the rule is lossless; empty for a rule that always is, and None for one that never is.
    without_q
        Settings at which the rule needs no draft distribution; empty if there are none.
    lossless_when_sampling
        Whether ``lossless_at`` holds for sampling too, or only for greedy decoding.
    relaxes
        The kind of decoding that the rule can change: ``"sampling"``, ``"greedy"`` or ``"both"``.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    formula: ClassVar[Formula | None] = None
    usual: ClassVar[Mapping[str, Any]] = {}
    lossless_at: ClassVar[Mapping[str, Any] | None] = None
    without_q: ClassVar[Mapping[str, Any]] = {}
    lossless_when_sampling: ClassVar[bool] = False
    relaxes: ClassVar[str] = "both"

    def __post_init__(self) -> None:
        for each in settings_of(type(self)):
            if getattr(self, each.name) is not each.default:
                each.check(self)

    @property
    def needs(self) -> frozenset[str]:
        """The inputs that the rule reads besides the target's logits; most rules set a class attribute.

        A subset of ``"draft_probs"``, ``"draft_or_point_mass"``, ``"hidden"``, ``"draft_hidden"`` and
        ``"dropped_heads"``. ``"draft_probs"`` requires a draft distribution; with ``"draft_or_point_mass"``, a drafter
        without one counts as certain of its tokens.
        """
        return frozenset()

    dropped_heads: ClassVar[DroppedHeads | None] = None
    """The dropped heads that the rule reads, or None."""

    unverified_drafting: ClassVar[Acceptor | None] = None
    """The rule by whose head the draft commits tokens without the target, or None."""

    drafts_until: ClassVar[float] = 0.5
    """Where no draft length is given, a draft ends once Π q(xᵢ) is below this: lower for rules that keep more."""

    adds_lossless: ClassVar[bool] = False
    """Whether, when sampling, the rule also keeps what the lossless rule keeps, with its correction."""

    lacks_base: ClassVar[bool] = False
    """Whether the last rule of a list becomes the rule's base."""

    def without_base(self) -> Acceptor:
        """Return the rule for a list, in which the last rule takes the place of its base."""
        return self

    reads_draft: ClassVar[bool] = False
    """Whether its decision about a token depends on others of the draft, or on earlier rounds."""

    decides_whole_drafts: ClassVar[bool] = False
    """Whether the rule decides drafts as wholes, which no rule of a list can."""

    corrects_greedily: ClassVar[bool] = False
    """Whether the rule has a greedy correction of its own; others take the target's best token."""

    has_budget: ClassVar[bool] = False
    """Whether :meth:`charge` takes from a budget over the whole text."""

    def decider(self, v: Verification) -> Acceptor:
        """Return the rule to use when this one runs alone: usually itself.

        Rules that decide whole drafts return a lossless substitute.
        """
        return self

    def check_models(self, target: PreTrainedModel, draft: PreTrainedModel | None) -> None:
        """Raise :class:`LossyError` if a trained head of the rule does not belong to the models."""
        return

    def has_effect(self, do_sample: bool) -> bool:
        """Tell whether the rule can change this kind of decoding."""
        return self.relaxes in ("both", "sampling" if do_sample else "greedy")

    def is_lossless(self, do_sample: bool) -> bool:
        """Tell whether the rule, as configured, leaves the distribution of the output unchanged."""
        if not self.has_effect(do_sample):
            return True
        if self.lossless_at is None or (do_sample and not self.lossless_when_sampling):
            return False
        return {key: getattr(self, key) for key in self.lossless_at} == self.lossless_at

    @abstractmethod
    def keep(self, v: Verification) -> Tensor:
        """Return ``(B, n)`` whether each drafted token is kept, given that all before it are."""

    def correction(self, v: Verification, at: Tensor) -> Tensor:
        """Return the distribution ``(B, V)`` of the token that replaces the drafted one at positions ``at`` ``(B,)``.

        The values are weights to draw from, or scores to maximise; by default those of the lossless rule.
        """
        return v.residual_distribution(at)

    def charge(self, v: Verification) -> Tensor | None:
        """Return ``(B, n)`` what keeping each token takes from a budget over the whole text; None without a budget.

        Asked only where :attr:`has_budget`. A token is charged whichever rule keeps it. ``v.spent`` is the sum over the
        text so far.
        """
        return None

    def quantities(self, v: Verification) -> Mapping[str, Tensor]:
        """Return ``(B, n)`` the quantities that the rule compares, by name, for inspection; draw no random numbers.

        By default p(x) / q(x), and the random number that it is compared with.
        """
        return {"p/q": v.ratio, **({"u": v.u} if v.do_sample else {})}

    def credits(self, v: Verification) -> dict[str, Tensor]:
        """Return ``(B, n)`` per rule which kept tokens are credited to it; a token is credited to one rule only.

        A base is credited with all tokens that it would keep, and the rule on top with the others.
        """
        return {self.name: self.keep(v)}

    def check_mode(self, do_sample: bool, longest: int | None = None) -> str | None:
        """Return a warning if the rule has no effect in this kind of decoding, else None.

        ``longest`` is the largest number of tokens in a draft, if known.
        """
        if self.has_effect(do_sample):
            return None
        here, there = ("sampling", "False") if do_sample else ("greedy decoding", "True")
        other = "'cactus' or 'ears'" if do_sample else "'min_p' or 'typical'"
        return (
            f"`lossy_mode` {self.name!r} changes nothing in {here} (`do_sample={do_sample}`): the run is lossless. "
            f"Pass `do_sample={there}`, or choose a rule that has an effect here, e.g. {other}."
        )


@dataclass(frozen=True)
class GreedyRule(Acceptor):
    """A rule made for greedy decoding. When sampling, it also keeps what the lossless rule keeps, with its correction.

    If the published rule keeps x with probability k(x), x is kept with probability ``max(k(x), min(1, p(x)/q(x)))``, or
    more where the two decide independently. The correction is ``norm([p - q]+)``. So the rule keeps at least as many
    tokens as the lossless one, and what it keeps beyond that is all that it changes: its acceptance is ``α₀ + TV``,
    with ``TV = Σ [q·k - p]+`` the total variation between p and the output, which no other correction makes smaller.
    Where it keeps nothing beyond, it is the lossless rule. Greedy decoding is as published.

    Subclasses write :meth:`keep_published`, and :meth:`correct_published` where the published correction of a draw is
    not the lossless one.

    Parameters
    ----------
    published
        Whether sampling, too, is as published: only what the rule itself keeps, with its own correction.
    """

    published: bool = setting(False, switch=True, kw_only=True)

    @property
    def adds_lossless(self) -> bool:
        """Whether sampling is not as published."""
        return not self.published

    @abstractmethod
    def keep_published(self, v: Verification) -> Tensor:
        """Return ``(B, n)`` whether the published rule keeps each drafted token."""

    def correct_published(self, v: Verification, at: Tensor) -> Tensor:
        """Return the published correction ``(B, V)`` of a draw, as :meth:`correction` does."""
        return v.residual_distribution(at)

    def keep(self, v: Verification) -> Tensor:
        return with_lossless(self, v, self.keep_published(v))

    def correction(self, v: Verification, at: Tensor) -> Tensor:
        own = v.do_sample and self.published
        return self.correct_published(v, at) if own else v.residual_distribution(at)

    def quantities(self, v: Verification) -> Mapping[str, Tensor]:
        return super().quantities(v) if v.do_sample and self.adds_lossless else {}


def with_lossless(rule: Acceptor, v: Verification, kept: Tensor) -> Tensor:
    """Return ``kept`` ``(B, n)``, with what the lossless rule keeps where the rule adds that."""
    return kept | (v.lossless & v.allowed) if v.do_sample and rule.adds_lossless else kept


def _judge_tokens(
    acceptor: Acceptor, v: Verification, positions: LosslessPositions | None
) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
    """Return ``(B, n)`` which tokens are kept, which are credited to each rule, and where the lossless rule decided."""
    credits = acceptor.credits(v)
    keep = reduce(torch.logical_or, credits.values())
    strict = None if positions is None else positions.over(keep, v.lossless)
    if strict is not None:
        keep = torch.where(strict, v.lossless, keep)
        credits = {rule: mask & ~strict for rule, mask in credits.items()}
        credits["lossless"] = credits.get("lossless", torch.zeros_like(strict)) | (v.lossless & strict)
    if v.shape.drafted is not None:
        keep = keep & v.shape.drafted
    return keep, credits, strict


def _next(v: Verification, distribution: Tensor) -> Tensor:
    token = v.choose(distribution)
    return token.where(drawable(distribution), -1) if v.do_sample else token


def decide(acceptor: Acceptor, v: Verification, positions: LosslessPositions | None = None) -> Decision:
    """Apply a rule to one round: keep a prefix of each draft, then choose the token that follows it.

    The lossless rule decides at ``positions``, unless drafts are decided as wholes. One path of a tree is kept:
    greedily the deepest, the target's likeliest of ties; when sampling, through the first siblings that are kept.
    """
    if len(v) == 0:
        none = v.tokens.bool()
        last = torch.zeros(len(none), dtype=torch.long, device=v.logits.device)
        return Decision(none, last, _next(v, v.after(last)), last == 0, none, {})
    rule = acceptor.decider(v)
    whole = rule is not acceptor  # another rule decides this draft, as a whole or token by token, without a loss
    keep, credits, strict = _judge_tokens(rule, v, None if whole else positions)
    # The lossless rule keeps one path at most, since the target has one argmax.
    prefix = v.shape.prefix(keep, v.do_sample, lambda: None if rule.is_lossless(False) else v.log_p)
    charge = rule.charge(v) if rule.has_budget else None
    if charge is not None:
        charge = charge.where(prefix.mask.bool(), 0.0).sum(-1)
    if not (v.do_sample or rule.corrects_greedily):
        next_token = v.best_after.gather(-1, prefix.end[:, None])[:, 0]
    else:
        at = prefix.rejected.clamp(max=len(v) - 1)
        replaced = rule.correction(v, at)
        if strict is not None:
            replaced = torch.where(strict.gather(-1, at[:, None]), v.residual_distribution(at), replaced)
        next_token = _next(v, torch.where(prefix.complete[:, None], v.after(prefix.end), replaced))
    lossless = keep if whole else v.lossless
    return Decision(keep, prefix.length, next_token, prefix.complete, lossless, credits, prefix.columns, charge)
