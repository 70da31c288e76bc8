"""Says how many tokens to draft per round."""

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
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from ..errors import LossyValueError
from .tree_config import TreeConfig

Agree = Callable[[float], float]
"""Maps a process's own measurement to the one that all processes use."""

DEFAULT_NUM_TOKENS = 5
_SCHEDULES = ("constant", "heuristic", "heuristic_transient")


@dataclass(frozen=True)
class Round:
    """The cost of a round, and the tokens that it kept; seconds are 0 without a stopwatch."""

    drafted: int
    accepted: int
    drafting: float  # seconds in the draft model
    rest: float  # seconds from then until the next draft could begin
    first: bool = False  # whether it was a text's first round, in which both models read the prompt


class DraftLength(ABC):
    """Chooses γ from round to round."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Tokens to draft in the next round."""

    def observe(self, last: Round) -> None:
        """Learn from a round."""
        return

    def watch(self, device: torch.device, agree: Agree = float) -> Stopwatch:
        """Return a stopwatch for the rounds of a draft model on ``device``.

        Processes that run one model together ``agree`` on each measured time.
        """
        return NoStopwatch(device, agree)


class ConstantLength(DraftLength):
    """Drafts equally many tokens in every round."""

    def __init__(self, size: int) -> None:
        self._size = size

    @property
    def size(self) -> int:
        return self._size


class HeuristicLength(ConstantLength):
    """Adds two after a fully accepted draft and subtracts one otherwise: transformers' ``"heuristic"`` schedule."""

    def observe(self, last: Round) -> None:
        self._size = self._size + 2 if last.accepted == last.drafted else max(1, self._size - 1)


class AutoNodes(DraftLength):
    """Chooses the number of nodes with the largest expected speedup, for trees of a ``depth``.

    Drafting a tree takes as long for any number of nodes, and kept tokens grow about with the logarithm of the nodes.
    So one line is fitted to the kept tokens, over log nodes, and one to the time of the rest of a round, over nodes.
    The first rounds and every 16th try another number, since one number alone would give no line.
    """

    _FIRST = (32, 8, 64, 16)
    _EXPLORE_EVERY = 16
    _MEMORY = 128
    _FORGET = 0.99
    _PRIOR = ((4, 1.0), (32, 2.5))
    _PRIOR_WEIGHT = 2.0

    def __init__(self, depth: int, highest: int = 128) -> None:
        self.depth = depth
        self.highest = highest
        self.rounds = 0
        self.kept_of: dict[int, tuple[float, float]] = {}  # decayed rounds and kept tokens per number of nodes
        self.drafting: deque[float] = deque(maxlen=self._MEMORY)
        self.rests: dict[int, deque[float]] = {}
        self._best = min(self._FIRST[0], highest)
        self._lock = threading.Lock()  # calls in several threads may share a draft's acceptance and times

    @property
    def size(self) -> int:
        size = self._best
        if self.rounds < len(self._FIRST):
            size = self._FIRST[self.rounds]
        elif self.rounds % self._EXPLORE_EVERY == 0:
            size = self._best // 2 if self.rounds // self._EXPLORE_EVERY % 2 else 2 * self._best
        return min(max(1, size), self.highest)

    def watch(self, device: torch.device, agree: Agree = float) -> Stopwatch:
        return Stopwatch(device, agree)

    def observe(self, last: Round) -> None:
        with self._lock:
            self.rounds += 1
            if last.drafted == 0:
                return
            self._count(last)
            if not last.first:
                self.drafting.append(last.drafting)
                self.rests.setdefault(last.drafted, deque(maxlen=self._MEMORY)).append(last.rest)
            if self.rounds >= len(self._FIRST) and self.drafting:
                self._best = self._choose()

    def _count(self, last: Round) -> None:
        self.kept_of = {n: (self._FORGET * w, self._FORGET * kept) for n, (w, kept) in self.kept_of.items()}
        rounds, kept = self.kept_of.get(last.drafted, (0.0, 0.0))
        self.kept_of[last.drafted] = rounds + 1, kept + last.accepted

    def _choose(self) -> int:
        base, slope = self._line()
        drafting = statistics.median(self.drafting)
        if base + slope + drafting <= 0:  # the clock is too coarse
            return self._best
        start, gain = self._kept_line()
        sizes = range(1, self.highest + 1)
        kept = [min(max(0.0, start + gain * math.log2(n)), self.depth, n) for n in sizes]
        return max(sizes, key=lambda n: (kept[n - 1] + 1) / (drafting + base + slope * n))

    def _line(self) -> tuple[float, float]:
        """Fit the rest of a round as ``base + slope · n``, by least squares over the median of every n."""
        points = [(size, statistics.median(times), len(times)) for size, times in self.rests.items()]
        mean_x, mean_y, slope = _fitted(points)
        slope = min(slope, mean_y / (mean_x + 1))  # no round takes negative time
        return mean_y - slope * mean_x, slope

    def _kept_line(self) -> tuple[float, float]:
        points = [(math.log2(n), kept / rounds, rounds) for n, (rounds, kept) in self.kept_of.items()]
        points += [(math.log2(n), kept, self._PRIOR_WEIGHT) for n, kept in self._PRIOR]
        mean_x, mean_y, slope = _fitted(points)
        return mean_y - slope * mean_x, slope


def _fitted(points: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    """Return the means of x and y, and the slope, at least 0, of the least-squares line through ``(x, y, weight)``."""
    total = sum(weight for *_, weight in points)
    mean_x = sum(x * w for x, _, w in points) / total
    mean_y = sum(y * w for _, y, w in points) / total
    spread = sum(w * (x - mean_x) ** 2 for x, _, w in points)
    slope = sum(w * (x - mean_x) * (y - mean_y) for x, y, w in points) / spread if spread else 0.0
    return mean_x, mean_y, max(slope, 0.0)


def draft_length_of(num_tokens: int, schedule: str = "constant") -> DraftLength:
    """Return the draft length for ``num_assistant_tokens`` and ``num_assistant_tokens_schedule``."""
    return ConstantLength(num_tokens) if constant_length(num_tokens, schedule) else HeuristicLength(num_tokens)


def constant_length(num_tokens: int, schedule: str = "constant") -> int | None:
    """Return how many tokens every draft has; None where the number changes from round to round."""
    return None if schedule.startswith("heuristic") else num_tokens


# Texts are short and requests many, so calls share what they learn of a draft in a situation.
_learned: weakref.WeakKeyDictionary[nn.Module, Callable[..., AutoNodes]] = weakref.WeakKeyDictionary()


def node_count_of(tree: TreeConfig, draft: nn.Module, *situation: Hashable) -> DraftLength:
    """Return the number of nodes for trees; an automatic one starts from what calls have learnt in the situation."""
    if tree.nodes != "auto":
        return ConstantLength(tree.nodes)
    known = _learned.setdefault(draft, lru_cache(256)(lambda depth, highest, *_: AutoNodes(depth, highest)))
    return known(tree.depth, min(tree.candidates, 128), tree.top_k, *situation)


def check_schedule(value: Any) -> None:
    if not isinstance(value, str) or value not in _SCHEDULES:
        raise LossyValueError(f"`num_assistant_tokens_schedule` has to be one of {list(_SCHEDULES)}, but is {value!r}")


def check_confidence(value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1):
        raise LossyValueError(f"`assistant_confidence_threshold` has to be a number >= 0 and <= 1, but is {value!r}")


def check_num_tokens(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise LossyValueError(f"`num_assistant_tokens` has to be an int >= 1 or 'auto', but is {value!r}")


class Stopwatch:
    """Marks points in a device's queue of work, and measures the time between two of them."""

    def __init__(self, device: torch.device, agree: Agree = float) -> None:
        self.device = device
        self.agree = agree
        self.on_gpu = device.type == "cuda"

    def mark(self) -> Any:
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
    """Measures nothing, for draft lengths that need no times: on a GPU, measuring means waiting."""

    def mark(self) -> Any:
        return None

    def between(self, start: Any, end: Any) -> float:
        return 0.0
