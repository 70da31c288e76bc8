"""Rules that combine several: any or all of them have to keep a token."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..core.messages import Verification
from ..errors import LossyValueError
from ..heads import Head
from .base import Acceptor, with_lossless
from .lossless import Lossless
from .registry import setting


def _any(name: str) -> property:
    """Return a property that holds where it holds for any of the rules."""
    return property(lambda self: any(getattr(rule, name) for rule in self.rules))


def _first(name: str) -> property:
    """Return a property whose value is that of the first rule that has one."""
    return property(lambda self: next(filter(None, (getattr(rule, name) for rule in self.rules)), None))


def _of_base(name: str) -> property:
    """Return a property that holds where there is a base for which it holds."""
    return property(lambda self: self.base is not None and getattr(self.base, name))


@dataclass(frozen=True)
class _Composed(Acceptor):
    rules: tuple[Acceptor, ...]

    paper = "composition"
    conjunction: ClassVar[str]
    drafts_until_of: ClassVar[Callable[[Iterable[float]], float]]

    dropped_heads, unverified_drafting = _first("dropped_heads"), _first("unverified_drafting")
    reads_draft, adds_lossless, has_budget = _any("reads_draft"), _any("adds_lossless"), _any("has_budget")

    @property
    def name(self) -> str:
        return f" {self.conjunction} ".join(rule.name for rule in self.rules)

    def __post_init__(self) -> None:
        heads = {rule.dropped_heads for rule in self.rules} - {None}
        if len(heads) > 1:
            raise LossyValueError(f"rules of one list have to share one set of dropped heads, but ask for {heads}")
        if whole := [rule for rule in self.rules if rule.decides_whole_drafts]:
            raise LossyValueError(
                f"rules of a list judge tokens one by one, but {whole[0]!r} decides drafts as wholes; leave out "
                "that rule, or the setting by which it does"
            )

    def check_models(self, target: PreTrainedModel, draft: PreTrainedModel | None) -> None:
        for rule in self.rules:
            rule.check_models(target, draft)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset().union(*(rule.needs for rule in self.rules))

    @property
    def drafts_until(self) -> float:
        return self.drafts_until_of(rule.drafts_until for rule in self.rules)

    def is_lossless(self, do_sample: bool) -> bool:
        # When sampling, one rule's acceptance with another's correction need not add up to p.
        return not do_sample and all(rule.is_lossless(do_sample) for rule in self.rules)

    @property
    def corrects_greedily(self) -> bool:
        return self.rules[-1].corrects_greedily

    def correction(self, v: Verification, at: Tensor) -> Tensor:
        if v.do_sample and self.adds_lossless:
            return v.residual_distribution(at)
        return self.rules[-1].correction(v, at)

    def quantities(self, v: Verification) -> Mapping[str, Tensor]:
        return {f"{rule.name}: {name}": x for rule in self.rules for name, x in rule.quantities(v).items()}

    def charge(self, v: Verification) -> Tensor | None:
        return next((charge for rule in self.rules if (charge := rule.charge(v)) is not None), None)

    def check_mode(self, do_sample: bool, longest: int | None = None) -> str | None:
        longest = None if self.unverified_drafting else longest
        return next(filter(None, (rule.check_mode(do_sample, longest) for rule in self.rules)), None)


@dataclass(frozen=True)
class AnyOf(_Composed):
    """Keep x iff any of the rules keeps it; the correction is that of the last rule.

    When sampling with a :class:`~hf_lossy_assist.acceptors.GreedyRule` in the list, the correction is the lossless one.
    A token is credited to the first rule of the list that keeps it. A rule that only adds to the last one (``judge``)
    comes last.
    """

    conjunction: ClassVar[str] = "or"
    drafts_until_of: ClassVar = staticmethod(min)

    def keep(self, v: Verification) -> Tensor:
        return torch.stack([rule.keep(v) for rule in self.rules]).any(0)

    def credits(self, v: Verification) -> dict[str, Tensor]:
        credits: dict[str, Tensor] = {}
        kept = none = torch.zeros_like(v.tokens, dtype=torch.bool)
        for rule in sorted(self.rules, key=lambda rule: rule.lacks_base):
            for name, mask in rule.credits(v).items():
                credits[name] = credits.get(name, none) | (mask & ~kept)
                kept = kept | mask
        return credits


@dataclass(frozen=True)
class AllOf(_Composed):
    """Keep x iff every one of the rules keeps it; the correction is that of the last rule.

    When sampling with a :class:`~hf_lossy_assist.acceptors.GreedyRule` among the rules, x is also kept where the
    lossless rule keeps it, and the correction is the lossless one.
    """

    conjunction: ClassVar[str] = "and"
    drafts_until_of: ClassVar = staticmethod(max)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unverified_drafting is not None:
            raise LossyValueError(
                f"`lossy_mode` {{'all_of': {[rule.name for rule in self.rules]}}} has a rule that keeps tokens without "
                "the target; use a list, e.g. ['sprinter', 'ears'], in which the others decide its remaining tokens"
            )

    def keep(self, v: Verification) -> Tensor:
        return with_lossless(self, v, torch.stack([rule.keep(v) for rule in self.rules]).all(0))


@dataclass(frozen=True)
class HeadRule(Acceptor):
    """A rule that keeps some tokens by a trained head, and others by a base rule.

    The rule is credited with the tokens that only the head keeps, and the base with all that it would keep.
    """

    head: Head
    threshold: float | None = setting(None, 0, 1, unset="the head's")
    base: Acceptor | None = field(default_factory=Lossless, kw_only=True, metadata={"internal": True})

    lossless_when_sampling = True
    adds_lossless, corrects_greedily = _of_base("adds_lossless"), _of_base("corrects_greedily")
    has_budget = _of_base("has_budget")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold is None:
            object.__setattr__(self, "threshold", self.head_threshold())

    def head_threshold(self) -> float:
        """Return the default threshold: the one that the head was published with."""
        return self.head.config.threshold

    @property
    def lacks_base(self) -> bool:
        return self.base is None

    def without_base(self) -> Acceptor:
        return replace(self, base=None)

    def check_models(self, target: PreTrainedModel, draft: PreTrainedModel | None) -> None:
        self.head.check(target, draft)

    def is_lossless(self, do_sample: bool) -> bool:
        return super().is_lossless(do_sample) and (self.base is None or self.base.is_lossless(do_sample))

    def keep_by_head(self, v: Verification) -> Tensor:
        """Return ``(B, n)`` which tokens the head keeps, regardless of the base."""
        return torch.zeros_like(v.tokens, dtype=torch.bool)

    def keep(self, v: Verification) -> Tensor:
        return self.keep_by_head(v) if self.base is None else self.keep_by_head(v) | self.base.keep(v)

    def credits(self, v: Verification) -> dict[str, Tensor]:
        by_head = self.keep_by_head(v)
        if self.base is None:
            return {self.name: by_head}
        by_base = self.base.credits(v)
        for mask in by_base.values():
            by_head = by_head & ~mask
        return {**by_base, self.name: by_head}

    def correction(self, v: Verification, at: Tensor) -> Tensor:
        return v.residual_distribution(at) if self.base is None else self.base.correction(v, at)

    def quantities(self, v: Verification) -> Mapping[str, Tensor]:
        return {} if self.base is None else self.base.quantities(v)

    def charge(self, v: Verification) -> Tensor | None:
        return None if self.base is None else self.base.charge(v)
