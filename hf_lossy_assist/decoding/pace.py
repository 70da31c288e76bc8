"""Times a call's rounds, to say so where drafting has cost more time than it has saved."""

from __future__ import annotations

import statistics
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..errors import warn

ROUNDS = 16
"""Rounds of a call that may be warned of."""
CLEARLY = 0.9
"""The target alone is clearly faster if its time per token is below this share of the call's."""

_warned: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_watching: list[tuple[Any, list[Pace]]] = []


@contextmanager
def watched(clock: Callable[[], float] | None = None) -> Iterator[list[Pace]]:
    """Collect the paces of all calls inside a block; without a GPU, they read this ``clock`` if there is one."""
    found: list[Pace] = []
    _watching.append((clock, found))
    try:
        yield found
    finally:
        _watching.pop()


class Pace:
    """The times at which a call's rounds began, and at which their drafts were there."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.began: list[Any] = []
        self.drafted: list[Any] = []
        self.now: Callable[[], Any] = time.perf_counter
        for clock, found in _watching:
            found.append(self)
            self.now = clock or self.now
        if device.type == "cuda":
            self.now = self._recorded_event

    def laps(self) -> list[tuple[float, float]]:
        """Return the seconds of each round but the last, draft and all else; the device has to be waited for before."""
        times = zip(self.began, self.drafted, self.began[1:])  # noqa: B905
        return [(self._between(began, drafted), self._between(drafted, end)) for began, drafted, end in times]

    def warn_of_loss(self, target: nn.Module, tokens: int, accepted: int = 1) -> None:
        """Warn, once for each target, if the target alone would have written the longest row's ``tokens`` faster.

        ``accepted`` is how many drafted tokens all rows kept.
        A plain token takes one forward over one token, so at most a round without its draft. Medians keep out rounds in
        which something was compiled, and a text's first round, which reads the prompt.
        """
        rounds = len(self.began) - 1  # nobody has waited for the end of the last one
        if rounds < ROUNDS or target in _warned:
            return
        if self.device.type == "cuda" and not self.began[-1].query():
            return  # reading the time of an event that is still to come fails, and waiting for it costs time
        whole = statistics.median(map(self._between, self.began, self.began[1:]))
        plain = statistics.median(map(self._between, self.drafted, self.began[1:]))
        own = whole * (rounds + 1) / tokens
        if plain < CLEARLY * own:
            _warned.add(target)
            warn(
                f"speculative decoding was slower here than the target alone: a token took {1000 * own:.4g} ms, but "
                f"the target alone needs at most {1000 * plain:.4g} ms. A round wrote {tokens / (rounds + 1):.2f} "
                f"tokens, and its draft took {1 - plain / whole:.0%} of its time. `lossy-assist advise` predicts "
                "which settings pay; "
                + (
                    "another `num_assistant_tokens` or a smaller draft may help"
                    if accepted
                    else "no drafted token was kept, so look first whether the draft has the target's tokenizer"
                )
            )

    def _recorded_event(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))  # which need not be the current device
        return event

    def _between(self, start: Any, end: Any) -> float:
        """Return the seconds between two times."""
        return end - start if self.device.type != "cuda" else start.elapsed_time(end) / 1000
