"""Seconds of kept answers: their rounds, times what a round cost on the machine of a ``costs.json``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hf_lossy_assist.evaluation.answers import Answer
from hf_lossy_assist.evaluation.modes import DecodingMode

COSTS = "costs.json"


@dataclass(frozen=True)
class Costs:
    """Seconds of the steps of a call, by the length of its text.

    Between two measured lengths, and between two measured numbers of tokens, costs are interpolated; beyond the last
    they stay. Those that :func:`merged` returns never fall as the target reads more tokens.

    Examples
    --------
    >>> costs = Costs((100, 300), (1.0, 3.0), (0.5, 2.5), (0.02, 0.04), {1: (0.1, 0.1), 5: (0.2, 0.3)})
    >>> round(costs.round(4, length=100), 3), round(costs.round(4, length=200), 3)
    (0.28, 0.37)
    >>> round(costs.answer(prompt=100, tokens=20, rounds=5, drafted=20), 3)
    2.445
    >>> round(costs.answer(prompt=100, tokens=20, rounds=20, drafted=0), 3)
    2.5
    """

    lengths: tuple[int, ...]  # tokens of the text, ascending; each of the following has a value for each
    prompt: tuple[float, ...]  # what the first round takes more than the others, where a draft reads the prompt too
    prompt_alone: tuple[float, ...]  # the same for the target alone
    drafted: tuple[float, ...]  # a drafted token
    # All else in a round, by the number of tokens that the target reads in it: its forward, the rule and the loop. For
    # one token, it is a token of the target alone.
    target: Mapping[int, tuple[float, ...]]
    block: tuple[float, ...] = ()  # a draft of one forward, however many tokens it has; then drafted tokens are free

    def __post_init__(self) -> None:
        object.__setattr__(self, "block", self.block or (0.0,) * len(self.lengths))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Costs:
        """Return costs that a file has."""
        target = {int(n): tuple(each) for n, each in values["target"].items()}
        return cls(**{name: tuple(value) for name, value in values.items() if name != "target"}, target=target)

    def _at(self, seconds: tuple[float, ...], length: float) -> float:
        return float(np.interp(length, self.lengths, seconds))

    def read(self, tokens: float, length: float) -> float:
        """Return the seconds of a round without its draft, in which the target reads so many tokens."""
        known = sorted(self.target)
        return float(np.interp(tokens, known, [np.interp(length, self.lengths, self.target[n]) for n in known]))

    def round(self, gamma: float, length: float) -> float:
        """Return the seconds of a round of ``gamma`` drafted tokens; 0 is a token of the target alone."""
        draft = gamma * self._at(self.drafted, length) + min(gamma, 1) * self._at(self.block, length)
        return draft + self.read(gamma + 1, length)

    def answer(self, prompt: int, tokens: int, rounds: int, drafted: int) -> float:
        """Return the seconds of an answer of so many ``tokens`` to a ``prompt`` of so many."""
        if not rounds:
            return 0.0
        first = np.interp(prompt, self.lengths, self.prompt if drafted else self.prompt_alone)
        return float(first) + rounds * self.round(drafted / rounds, prompt + tokens / 2)


def predicted_seconds(
    modes: Iterable[DecodingMode], costs: Mapping[str, Mapping[str, Any]], answers: Iterable[Answer]
) -> dict[str, dict[int, float]]:
    """Return the seconds of answers by mode and problem, where a mode's costs and an answer's counts are known."""
    known = {mode.label: (mode, Costs.of(costs[mode.label])) for mode in modes if mode.label in costs}
    found: dict[str, dict[int, float]] = {}
    for answer in answers:
        mode, cost = known.get(answer.mode, (None, None))
        if mode is None or answer.prompt is None or (answer.drafted is None and mode.gamma == "auto"):
            continue
        rounds, drafted = (answer.tokens, 0) if mode.gamma is None else (answer.rounds, answer.drafted)
        if mode.gamma not in (None, "auto"):
            drafted = rounds * mode.gamma
        found.setdefault(mode.label, {})[answer.id] = cost.answer(answer.prompt, answer.tokens, rounds, drafted)
    return found
