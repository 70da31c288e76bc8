"""Says where a round's draft ends: after γ tokens, or before. Only the draft decides, so lossless rules stay so."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import LossyValueError, brief
from ..heads import VerifierHead
from ..values import SETTINGS, bounded

DEFAULT_NUM_TOKENS = 5
SCHEDULES = ("constant", "heuristic", "heuristic_transient")


@dataclass
class DraftLength:
    """Drafts ``size`` tokens in every round."""

    size: int

    adapts: ClassVar[bool] = False
    """Whether the size follows from what was kept."""

    def observe(self, drafted: int, accepted: int) -> None:
        """Learn from a round that drafted tokens."""
        return


@dataclass
class HeuristicLength(DraftLength):
    """Adds two after a fully accepted draft and subtracts one otherwise: transformers' ``"heuristic"`` schedule."""

    adapts: ClassVar[bool] = True

    def observe(self, drafted: int, accepted: int) -> None:
        self.size = self.size + 2 if accepted == drafted else max(1, self.size - 1)


def draft_length_of(num_tokens: int, schedule: str = "constant") -> DraftLength:
    """Return the draft length for ``num_assistant_tokens`` and ``num_assistant_tokens_schedule``."""
    return (HeuristicLength if constant_length(num_tokens, schedule) is None else DraftLength)(num_tokens)


def constant_length(num_tokens: int, schedule: str = "constant") -> int | None:
    """Return how many tokens every draft has; None where the number changes from round to round."""
    return None if schedule.startswith("heuristic") else num_tokens


def check_schedule(value: Any) -> None:
    if not isinstance(value, str) or value not in SCHEDULES:
        raise LossyValueError(
            f"`num_assistant_tokens_schedule` has to be one of {list(SCHEDULES)}, but is {brief(value)}"
        )


def check_confidence(value: Any) -> None:
    if value is not None:
        bounded(0, 1).check("assistant_confidence_threshold", value)


def check_num_tokens(value: Any, least: int = 1) -> None:
    bounded(least, integer=True, word="auto").check("num_assistant_tokens", value)


class DraftStop(ABC):
    """Decides after every drafted token whether to draft on. The token itself is verified either way."""

    name: ClassVar[str]  # by which `stop_drafting` in `lossy_config` chooses it
    reads_states: ClassVar[bool] = False  # whether it reads the draft model's states

    def check_models(self, target: PreTrainedModel, draft: PreTrainedModel) -> None:
        """Refuse models that it was not trained for."""
        return

    def begin(self) -> None:
        """Begin a round."""
        return

    @abstractmethod
    def goes_on(self, q: Tensor, token: Tensor, state: Tensor | None = None) -> Tensor:
        """Return ``(B,)`` whether each row drafts on.

        ``q`` ``(B, 1, V)`` is the distribution of the newest ``token`` ``(B, 1)``; ``state`` ``(B, d)`` is the draft
        model's state that predicted it, where states are read.
        """

    def observe(self, drafted: int, accepted: int) -> None:
        """Learn from a round."""
        return


def _check(setting: str, value: object, low: float, high: float) -> None:
    bounded(low, high).check(setting, value, f" of `stop_drafting`{SETTINGS}")


@dataclass
class ConfidenceStop(DraftStop):
    """Stop after a token x with q(x) below ``threshold``: transformers' ``assistant_confidence_threshold``."""

    threshold: float = 0.4

    name = "confidence"

    def __post_init__(self) -> None:
        _check("threshold", self.threshold, 0, 1)

    def goes_on(self, q: Tensor, token: Tensor, state: Tensor | None = None) -> Tensor:
        return (q.gather(-1, token[..., None]) >= self.threshold).flatten()


@dataclass
class EntropyStop(DraftStop):
    """Stop after a token with ``1 - sqrt(scale · H(q)) < λ``, where λ follows the acceptance of the rounds.

    AdaEDL (Agrawal et al. 2024), whose γ is ``scale``: the left side approximates a lower bound of the probability that
    the token is accepted. λ begins at ``threshold``; a round with a running acceptance below ``acceptance`` raises it
    by a tenth of ``step``, any other round lowers it by as much. The rows of a batch share it.

    Examples
    --------
    >>> import torch
    >>> sure, unsure = torch.tensor([[[0.98, 0.01, 0.01]], [[0.4, 0.3, 0.3]]])
    >>> stop = EntropyStop(threshold=0.6)
    >>> stop.goes_on(torch.stack([sure, unsure]), torch.tensor([[0], [0]]))
    tensor([ True, False])
    """

    threshold: float = 0.6
    scale: float = 0.2
    acceptance: float = 0.9
    step: float = 0.01
    current: float = field(init=False)
    _rate: float | None = field(init=False, default=None)

    name = "entropy"

    _RATE_MEMORY = 0.5
    _THRESHOLD_MEMORY = 0.9

    def __post_init__(self) -> None:
        for setting, high in {"threshold": 1, "scale": math.inf, "acceptance": 1, "step": 1}.items():
            _check(setting, getattr(self, setting), 0, high)
        self.current = self.threshold

    def goes_on(self, q: Tensor, token: Tensor, state: Tensor | None = None) -> Tensor:
        entropy = -torch.xlogy(q, q).sum(-1)
        return (1 - (self.scale * entropy).sqrt() >= self.current).flatten()

    def observe(self, drafted: int, accepted: int) -> None:
        if drafted == 0:
            return
        before = accepted / drafted if self._rate is None else self._rate
        self._rate = self._RATE_MEMORY * before + (1 - self._RATE_MEMORY) * accepted / drafted
        wanted = self.current + (self.step if self._rate < self.acceptance else -self.step)
        kept = self._THRESHOLD_MEMORY * self.current + (1 - self._THRESHOLD_MEMORY) * wanted
        self.current = min(max(kept, 0.0), 1.0)


@dataclass
class AcceptanceStop(DraftStop):
    """Stop once the probability that all drafted tokens are accepted, ``Π q(xᵢ)``, is below ``1 - threshold``.

    SpecDec++ (Huang et al. 2024), whose h is ``threshold``, with q(x) instead of the probability of a trained head, for
    which see :class:`HeadStop`.
    """

    threshold: float = 0.7
    _all: Tensor | None = field(init=False, default=None)

    name = "acceptance"

    def __post_init__(self) -> None:
        _check("threshold", self.threshold, 0, 1)

    def begin(self) -> None:
        self._all = None

    def goes_on(self, q: Tensor, token: Tensor, state: Tensor | None = None) -> Tensor:
        accepted = self._acceptance(q, token, state)
        self._all = accepted if self._all is None else self._all * accepted
        return 1 - self._all <= self.threshold

    def _acceptance(self, q: Tensor, token: Tensor, state: Tensor | None) -> Tensor:
        """Return the predicted probability ``(B,)`` that the token is accepted."""
        return q.gather(-1, token[..., None]).flatten()


@dataclass
class HeadStop(AcceptanceStop):
    """Stop as :class:`AcceptanceStop` does, by a trained head on the state that predicted a token: SpecDec++."""

    head: VerifierHead | None = None

    name = "head"
    reads_states = True

    def __post_init__(self) -> None:
        super().__post_init__()
        position = getattr(getattr(self.head, "config", None), "position", None)
        if position != "previous":
            raise LossyValueError(
                "`head` of `stop_drafting` in `lossy_config` has to be a verifier head with `position` 'previous', but "
                f"is {self.head!r} with `position` {position!r}; pass a folder, a Hub id or a loaded head, or stop by "
                "'acceptance', which needs no head"
            )

    def check_models(self, target: PreTrainedModel, draft: PreTrainedModel) -> None:
        self.head.check(target, draft)

    def _acceptance(self, q: Tensor, token: Tensor, state: Tensor | None) -> Tensor:
        return self.head.probability(state.to(self.head.weight.device).float()).to(q.device)


STOPS = {kind.name: kind for kind in (ConfidenceStop, EntropyStop, AcceptanceStop, HeadStop)}
"""Draft stops by the name that ``"by"`` of ``stop_drafting`` gives."""


LONGEST = 15
"""The most tokens of a draft that ends early, where the user gives no number."""


def fresh(stop: DraftStop | None) -> DraftStop | None:
    """Return a copy that has learnt nothing, for another text."""
    return None if stop is None else replace(stop)
