"""Rules that combine several: any of them, or all of them, have to keep a token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import LossyValueError
from ..messages import Verification
from .base import Acceptor, DroppedHeads, RunAhead


@dataclass(frozen=True)
class _Composed(Acceptor):
    rules: tuple[Acceptor, ...]

    paper = "composition"
    conjunction: ClassVar[str]

    @property
    def name(self) -> str:  # type: ignore[override]
        return f" {self.conjunction} ".join(rule.name for rule in self.rules)

    def __post_init__(self) -> None:
        heads = {rule.dropped_heads for rule in self.rules} - {None}
        if len(heads) > 1:
            raise LossyValueError(f"rules of one list have to share one set of dropped heads, but ask for {heads}")

    def check_models(self, target: PreTrainedModel, draft: PreTrainedModel | None) -> None:
        for rule in self.rules:
            rule.check_models(target, draft)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset().union(*(rule.needs for rule in self.rules))

    @property
    def dropped_heads(self) -> DroppedHeads | None:
        return next((rule.dropped_heads for rule in self.rules if rule.dropped_heads), None)

    @property
    def run_ahead(self) -> RunAhead | None:
        return next((rule.run_ahead for rule in self.rules if rule.run_ahead), None)

    def is_lossless(self, do_sample: bool) -> bool:
        # When sampling, one rule's acceptance with another's correction need not add up to p.
        return not do_sample and all(rule.is_lossless(do_sample) for rule in self.rules)

    def correction(self, v: Verification, at: Tensor) -> Tensor:
        return self.rules[-1].correction(v, at)

    def check_mode(self, do_sample: bool) -> str | None:
        return next(filter(None, (rule.check_mode(do_sample) for rule in self.rules)), None)


@dataclass(frozen=True)
class AnyOf(_Composed):
    """Keep x iff any of the rules keeps it; the correction is that of the last rule.

    A token is credited to the first rule of the list that keeps it; to a rule that only adds to the last one, its
    base (``judge``), it is credited where no other keeps it.
    """

    conjunction: ClassVar[str] = "or"

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
    """Keep x iff every one of the rules keeps it; the correction is that of the last rule."""

    conjunction: ClassVar[str] = "and"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.run_ahead is not None:
            raise LossyValueError(
                f"`lossy_mode` {{'all_of': {[rule.name for rule in self.rules]}}} has a rule that keeps tokens without "
                "the target; name it in a list, e.g. ['sprinter', 'ears'], where the others decide what it leaves"
            )

    def keep(self, v: Verification) -> Tensor:
        return torch.stack([rule.keep(v) for rule in self.rules]).all(0)
