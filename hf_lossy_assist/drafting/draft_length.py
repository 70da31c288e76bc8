"""Says how many tokens to draft per round."""

from __future__ import annotations

from typing import Any

from ..errors import LossyValueError

DEFAULT_NUM_TOKENS = 5
_SCHEDULES = ("constant", "heuristic", "heuristic_transient")


class DraftLength:
    """Drafts ``size`` tokens in every round."""

    def __init__(self, size: int) -> None:
        self.size = size

    def observe(self, drafted: int, accepted: int) -> None:
        """Learn from a round that drafted tokens."""
        return


class HeuristicLength(DraftLength):
    """Adds two after a fully accepted draft and subtracts one otherwise: transformers' ``"heuristic"`` schedule."""

    def observe(self, drafted: int, accepted: int) -> None:
        self.size = self.size + 2 if accepted == drafted else max(1, self.size - 1)


def draft_length_of(num_tokens: int, schedule: str = "constant") -> DraftLength:
    """Return the draft length for ``num_assistant_tokens`` and ``num_assistant_tokens_schedule``."""
    return (HeuristicLength if constant_length(num_tokens, schedule) is None else DraftLength)(num_tokens)


def constant_length(num_tokens: int, schedule: str = "constant") -> int | None:
    """Return how many tokens every draft has; None where the number changes from round to round."""
    return None if schedule.startswith("heuristic") else num_tokens


def check_schedule(value: Any) -> None:
    if not isinstance(value, str) or value not in _SCHEDULES:
        raise LossyValueError(f"`num_assistant_tokens_schedule` has to be one of {list(_SCHEDULES)}, but is {value!r}")


def check_confidence(value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1):
        raise LossyValueError(f"`assistant_confidence_threshold` has to be a number >= 0 and <= 1, but is {value!r}")


def check_num_tokens(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise LossyValueError(f"`num_assistant_tokens` has to be an int >= 1 or 'auto', but is {value!r}")
