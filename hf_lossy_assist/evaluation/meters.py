"""Meters for the forward passes of a ``generate()`` call: how many, how long, and over how many tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

Clock = Callable[[], float]

CLOCKS: Mapping[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}
"""``cpu`` counts the time that this process computes, in all of its threads: with one thread that is how long it would
take if nothing else ran on the machine."""


@dataclass
class Forwards:
    """The forward passes of one model during a call."""

    # Seconds of every pass: its decoder, and its LM head where one was called.
    calls: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)  # how many tokens of each row every pass read
    first_end: float | None = None  # when the first one was over, on the meter's clock

    @property
    def seconds(self) -> float:
        """Seconds of all passes."""
        return sum(self.calls)


@contextmanager
def metered(
    model: PreTrainedModel, synchronize: Callable[[], None] = lambda: None, clock: Clock = time.perf_counter
) -> Iterator[Forwards]:
    """Time the forward passes of a model inside a block.

    A pass is its decoder and its LM head, as modules: what a loop does around them counts as the loop's, whether it
    is transformers' or this package's.

    On a GPU, ``synchronize`` has to wait for the device before each reading of the clock, or the passes would seem to
    take no longer than it takes to queue them.

    Examples
    --------
    >>> from hf_lossy_assist import pairs
    >>> draft = pairs.load("arithmetic").draft
    >>> with metered(draft) as forwards:
    ...     _ = draft(torch.tensor([[1, 5, 9]]))
    >>> len(forwards.calls)
    1
    """
    forwards = Forwards()
    started: list[float] = []

    def before(module: nn.Module, args: Any) -> None:
        synchronize()
        started.append(clock())

    def elapsed() -> float:
        synchronize()
        now = clock()
        forwards.first_end = forwards.first_end if forwards.calls[1:] else now
        return now - started.pop()

    def after_decoder(module: nn.Module, args: Any, output: Any) -> None:
        forwards.calls.append(0.0)
        forwards.calls[-1] += elapsed()
        forwards.tokens.append(output[0].shape[1])

    def after_head(module: nn.Module, args: Any, output: Any) -> None:
        forwards.calls[-1] += elapsed()

    with ExitStack() as hooks:
        for module, after in ((model.get_decoder(), after_decoder), (model.get_output_embeddings(), after_head)):
            # Ours is the outermost: what other hooks do to a pass belongs to it.
            hooks.callback(module.register_forward_pre_hook(before, prepend=True).remove)
            hooks.callback(module.register_forward_hook(after).remove)
        yield forwards


def synchronizer(device: torch.device) -> Callable[[], None]:
    """Return a function that waits until a device has finished its work."""
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    return lambda: None
