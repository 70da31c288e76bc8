"""How many tokens to draft per round."""

from __future__ import annotations

import math
import statistics
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..errors import LossyValueError
from ..theory import best_gamma
from .tree_config import TreeConfig

Agree = Callable[[float], float]
"""From a process's own measurement to the one that all processes go by."""

DEFAULT_NUM_TOKENS = 5
SCHEDULES = ("constant", "heuristic", "heuristic_transient")
"""Values of ``num_assistant_tokens_schedule``; the last two differ from call to call in transformers only."""


@dataclass(frozen=True)
class Round:
    """What a round cost and kept.

    Attributes
    ----------
    drafted, accepted
        Tokens proposed and kept.
    drafting, rest
        Seconds in the draft model, and from then until the next draft could begin; 0 where nobody takes the time.
    first
        Whether it was a text's first round, in which both models read the prompt.
    """

    drafted: int
    accepted: int
    drafting: float
    rest: float
    first: bool = False


class DraftLength(ABC):
    """γ, from round to round."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Tokens to draft in the next round."""

    def observe(self, last: Round) -> None:
        """Learn from a round."""
        return

    def watch(self, device: torch.device, agree: Agree | None = None) -> Stopwatch:
        """Return what times the rounds of a draft model on a device.

        Processes that run one model together ``agree`` on what was measured.
        """
        return NoStopwatch(device, agree)


class ConstantLength(DraftLength):
    """The same γ in every round."""

    def __init__(self, size: int) -> None:
        self._size = size

    @property
    def size(self) -> int:
        return self._size


class HeuristicLength(ConstantLength):
    """Two more tokens after a fully accepted draft, one less otherwise: transformers' ``"heuristic"`` schedule."""

    def observe(self, last: Round) -> None:
        self._size = self._size + 2 if last.accepted == last.drafted else max(1, self._size - 1)


class AutoLength(DraftLength):
    """The γ of the largest expected speedup, by the running acceptance and the measured times.

    :func:`hf_lossy_assist.theory.best_gamma` of α, the share of drafted tokens that were kept among those that were
    decided; of the median time of a draft step; and of the time of the rest of a round as a line over γ. The first
    rounds, and every 16th, take another γ, without which there would be no line.

    Parameters
    ----------
    highest
        The largest γ.
    """

    _FIRST = (5, 1, 9, 3)
    _EXPLORE_EVERY = 16
    _EXPLORE_BY = 3
    _MEMORY = 128
    _FORGET = 0.99

    def __init__(self, highest: int = 32) -> None:
        self.highest = highest
        self.rounds = 0
        self.kept = self.rejected = 0.0
        self.steps: deque[float] = deque(maxlen=self._MEMORY)
        self.rests: dict[int, deque[float]] = {}
        self._best = DEFAULT_NUM_TOKENS
        self._lock = threading.Lock()  # calls in several threads may share what is learnt of a draft

    @property
    def size(self) -> int:
        if self.rounds < len(self._FIRST):
            return self._FIRST[self.rounds]
        if self.rounds % self._EXPLORE_EVERY == 0:
            step = -self._EXPLORE_BY if self.rounds // self._EXPLORE_EVERY % 2 else self._EXPLORE_BY
            return min(max(1, self._best + step), self.highest)
        return self._best

    @property
    def acceptance(self) -> float:
        """α, with a prior of two tokens at 0.7."""
        return (self.kept + 1.4) / (self.kept + self.rejected + 2)

    def watch(self, device: torch.device, agree: Agree | None = None) -> Stopwatch:
        return Stopwatch(device, agree)

    def observe(self, last: Round) -> None:
        with self._lock:
            self._learn(last)

    def _learn(self, last: Round) -> None:
        self.rounds += 1
        if last.drafted == 0:
            return
        self.kept = self._FORGET * self.kept + last.accepted
        self.rejected = self._FORGET * self.rejected + (last.accepted < last.drafted)
        if not last.first:
            self.steps.append(last.drafting / last.drafted)
            self.rests.setdefault(last.drafted, deque(maxlen=self._MEMORY)).append(last.rest)
        if self.rounds >= len(self._FIRST) and self.steps:
            self._best = self._choose()

    def _choose(self) -> int:
        base, slope = self._line()
        if base + slope <= 0:  # a clock too coarse for such models
            return self._best
        t_draft = statistics.median(self.steps)
        return best_gamma(self.acceptance, t_draft, (max(0.0, base - slope), slope), lowest=1, highest=self.highest)

    def _line(self) -> tuple[float, float]:
        """Fit the rest of a round as ``base + slope · γ``, by least squares over the median of every γ."""
        points = [(size, statistics.median(times), len(times)) for size, times in self.rests.items()]
        mean_x, mean_y, slope = _fitted(points)
        slope = min(max(slope, 0.0), mean_y / (mean_x + 1))  # a forward over nothing takes no negative time
        return mean_y - slope * mean_x, slope


class AutoNodes(AutoLength):
    """The number of nodes of trees that gives the largest expected speedup, learnt as γ is.

    A tree is drafted in the same time whatever is then left of it, and kept tokens grow about as the logarithm of the
    nodes: a line is fitted to what rounds have kept, beside that of the time of the rest of a round.

    Parameters
    ----------
    depth
        As many tokens are kept at most.
    highest
        The largest number of nodes.
    """

    _FIRST = (32, 8, 64, 16)
    _PRIOR = ((4, 1.0), (32, 2.5))
    _PRIOR_WEIGHT = 2.0

    def __init__(self, depth: int, highest: int = 128) -> None:
        super().__init__(highest)
        self.depth = depth
        self.kept_of: dict[int, tuple[float, float]] = {}  # per number of nodes: rounds and tokens kept, the last most
        self._best = min(self._FIRST[0], highest)

    @property
    def size(self) -> int:
        if self.rounds < len(self._FIRST):
            return min(self._FIRST[self.rounds], self.highest)
        if self.rounds % self._EXPLORE_EVERY == 0:
            other = self._best // 2 if self.rounds // self._EXPLORE_EVERY % 2 else 2 * self._best
            return min(max(1, other), self.highest)
        return self._best

    def _learn(self, last: Round) -> None:
        self.rounds += 1
        if last.drafted == 0:
            return
        self.kept_of = {n: (self._FORGET * w, self._FORGET * kept) for n, (w, kept) in self.kept_of.items()}
        rounds, kept = self.kept_of.get(last.drafted, (0.0, 0.0))
        self.kept_of[last.drafted] = rounds + 1, kept + last.accepted
        if not last.first:
            self.steps.append(last.drafting)
            self.rests.setdefault(last.drafted, deque(maxlen=self._MEMORY)).append(last.rest)
        if self.rounds >= len(self._FIRST) and self.steps:
            self._best = self._choose()

    def _kept_line(self) -> tuple[float, float]:
        points = [(math.log2(n), kept / rounds, rounds) for n, (rounds, kept) in self.kept_of.items()]
        points += [(math.log2(n), kept, self._PRIOR_WEIGHT) for n, kept in self._PRIOR]
        mean_x, mean_y, slope = _fitted(points)
        slope = max(slope, 0.0)
        return mean_y - slope * mean_x, slope

    def _choose(self) -> int:
        base, slope = self._line()
        drafting = statistics.median(self.steps)
        if base + slope + drafting <= 0:  # a clock too coarse for such models
            return self._best
        start, gain = self._kept_line()
        sizes = range(1, self.highest + 1)
        kept = [min(max(0.0, start + gain * math.log2(n)), self.depth, n) for n in sizes]
        return max(sizes, key=lambda n: (kept[n - 1] + 1) / (drafting + base + slope * n))


def _fitted(points: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    """Return the mean of x and of y, and the slope of the line of least squares through weighted points."""
    total = sum(weight for *_, weight in points)
    mean_x = sum(x * w for x, _, w in points) / total
    mean_y = sum(y * w for _, y, w in points) / total
    spread = sum(w * (x - mean_x) ** 2 for x, _, w in points)
    return mean_x, mean_y, sum(w * (x - mean_x) * (y - mean_y) for x, y, w in points) / spread if spread else 0.0


# Texts are short and requests many: what one has shown of a draft under a rule serves the next.
_learned: weakref.WeakKeyDictionary[nn.Module, dict[Hashable, AutoLength]] = weakref.WeakKeyDictionary()


def draft_length_of(
    num_tokens: int | str, schedule: str = "constant", draft: nn.Module | None = None, rule: str = ""
) -> DraftLength:
    """Return the draft length that ``num_assistant_tokens`` and ``num_assistant_tokens_schedule`` ask for.

    The automatic one goes on from what it has learnt of a draft model under a rule, where these are given.
    """
    check_num_tokens(num_tokens)
    if num_tokens == "auto":
        return AutoLength() if draft is None else _learned.setdefault(draft, {}).setdefault(rule, AutoLength())
    constant = constant_length(num_tokens, schedule) is not None
    return ConstantLength(num_tokens) if constant else HeuristicLength(num_tokens)


def constant_length(num_tokens: int | str, schedule: str = "constant") -> int | None:
    """Return how many tokens every draft is to have, or None where that changes from round to round."""
    return num_tokens if isinstance(num_tokens, int) and not schedule.startswith("heuristic") else None


def node_count_of(tree: TreeConfig, draft: nn.Module, rule: str = "") -> DraftLength:
    """Return what says how many nodes trees have; the automatic number is learnt of a draft model under a rule."""
    if tree.nodes != "auto":
        return ConstantLength(tree.nodes)
    situation = rule, tree.depth, tree.top_k
    return _learned.setdefault(draft, {}).setdefault(situation, AutoNodes(tree.depth, min(tree.candidates, 128)))


def check_schedule(value: Any) -> None:
    """Raise unless ``value`` can say how γ changes."""
    if not isinstance(value, str) or value not in SCHEDULES:
        raise LossyValueError(f"`num_assistant_tokens_schedule` has to be one of {list(SCHEDULES)}, but is {value!r}")


def check_confidence(value: Any) -> None:
    """Raise unless ``value`` can be a probability below which drafting stops; None for never."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1):
        raise LossyValueError(f"`assistant_confidence_threshold` has to be a number >= 0 and <= 1, but is {value!r}")


def check_num_tokens(value: Any) -> None:
    """Raise unless ``value`` can be γ."""
    if isinstance(value, str) and value == "auto":
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise LossyValueError(f"`num_assistant_tokens` has to be an int >= 1 or 'auto', but is {value!r}")


class Stopwatch:
    """Takes the time at marks in a device's queue of work; what lies between two is known once the work is done."""

    def __init__(self, device: torch.device, agree: Agree | None = None) -> None:
        self.device = device
        self.agree = (lambda seconds: seconds) if agree is None else agree
        self.on_gpu = device.type == "cuda"

    def mark(self) -> Any:
        """Return a mark."""
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))  # which need not be the current device
        return event

    def between(self, start: Any, end: Any) -> float:
        """Return the seconds between two marks."""
        if not self.on_gpu:
            return self.agree(end - start)
        end.synchronize()
        return self.agree(start.elapsed_time(end) / 1000)


class NoStopwatch(Stopwatch):
    """Takes no time, for draft lengths that do not ask: on a GPU, asking means waiting."""

    def mark(self) -> Any:
        return None

    def between(self, start: Any, end: Any) -> float:
        return 0.0
