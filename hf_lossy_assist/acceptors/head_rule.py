"""The base class of rules with a trained head: its threshold, its check, and the base rule below it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..heads import Head
from ..messages import Verification
from .base import Acceptor
from .declaration import setting
from .lossless import Lossless


@dataclass(frozen=True)
class HeadRule(Acceptor):
    """A rule that keeps some tokens by a trained head, and others by a base rule.

    The threshold is the head's own by default. The rule is credited with what the head alone keeps, and the
    base with all that it would keep anyway.
    """

    head: Head
    threshold: float | None = setting(None, 0, 1, unset="the head's")
    base: Acceptor | None = field(default_factory=Lossless, kw_only=True, metadata={"internal": True})

    lossless_when_sampling = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold is None:
            object.__setattr__(self, "threshold", self.head_threshold())

    def head_threshold(self) -> float:
        """Return the threshold where none is given: the one that the head was published with."""
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
        """Return ``(B, n)`` which tokens the head lets through, whatever the base says."""
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
