"""Says where a round's draft ends: after γ tokens, or before. Only the draft decides, so lossless rules stay so."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..values import SETTINGS, Rule, bounded

DEFAULT_NUM_TOKENS = 5
_SCHEDULES = ["constant", "heuristic", "heuristic_transient"]
SCHEDULE = Rule(f"one of {_SCHEDULES}", _SCHEDULES.__contains__)


def check_num_tokens(value: Any, least: int = 1) -> None:
    bounded(least, integer=True, word="auto").check("num_assistant_tokens", value)


class DraftStop(ABC):
    """Decides after every drafted token whether to draft on. The token itself is verified either way."""

    name: ClassVar[str]  # by which `stop_drafting` in `lossy_config` chooses it
    threshold: float

    def __post_init__(self) -> None:
        bounded(0, 1).check("threshold", self.threshold, f" of `stop_drafting`{SETTINGS}")

    def begin(self) -> None:
        """Begin a round."""
        return

    @abstractmethod
    def goes_on(self, q: Tensor) -> Tensor:
        """Return ``(B, n)`` whether each row drafts on after each of the next tokens, which have the chances ``q``."""


@dataclass
class ConfidenceStop(DraftStop):
    """Stop after a token x with q(x) below ``threshold``: transformers' ``assistant_confidence_threshold``."""

    threshold: float = 0.4

    name = "confidence"

    def goes_on(self, q: Tensor) -> Tensor:
        return q >= self.threshold


@dataclass
class AcceptanceStop(DraftStop):
    """Stop once the probability that all drafted tokens are accepted, ``Π q(xᵢ)``, is below ``1 - threshold``.

    SpecDec++ (Huang et al. 2024), whose h is ``threshold``, with q(x) instead of the probability of a trained head.
    """

    threshold: float = 0.7
    _all: Tensor | None = field(init=False, default=None)

    name = "acceptance"

    def begin(self) -> None:
        self._all = None

    def goes_on(self, q: Tensor) -> Tensor:
        before = q[:, :0] if self._all is None else self._all
        q = torch.cat([before, q], dim=-1).cumprod(-1)[:, -q.shape[1] :]
        self._all = q[:, -1:]
        return 1 - q <= self.threshold


STOPS = {kind.name: kind for kind in (ConfidenceStop, AcceptanceStop)}
"""Draft stops by the name that ``"by"`` of ``stop_drafting`` gives."""


LONGEST = 15
"""The most tokens of a draft that ends early, where the user gives no number."""


def fresh(stop: DraftStop | None) -> DraftStop | None:
    """Return a copy for another text."""
    return None if stop is None else replace(stop)
