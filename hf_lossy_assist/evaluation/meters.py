"""Meters of a ``generate()`` call: forward passes of both models, memory and energy; and the machine's names."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

Clock = Callable[[], float]

CLOCKS: Mapping[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}
"""``cpu`` counts the time that this process computes, in all of its threads: with one thread that is how long it would
take if nothing else ran on the machine."""


@dataclass
class ForwardTimes:
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
) -> Iterator[ForwardTimes]:
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
    forwards = ForwardTimes()
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


class ResidentMemory:
    """The process's resident set, weights included; Linux lets its peak be reset, elsewhere it is that of its life."""

    def __init__(self, process: Path = Path("/proc/self")) -> None:
        self._status, self._refs = process / "status", process / "clear_refs"

    def reset(self) -> None:
        """Let Linux forget the peak so far."""
        if self._refs.exists():
            self._refs.write_text("5")  # sets the peak to what is resident now

    def peak(self) -> int:
        """Return the largest resident set, in bytes."""
        if self._status.exists():
            lines = (line.split() for line in self._status.read_text().splitlines())
            return next(int(words[1]) * 1024 for words in lines if words[0] == "VmHWM:")
        import resource
        import sys

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class DeviceMemory:
    """The memory that torch has allocated on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def reset(self) -> None:
        """Let torch forget the peak so far."""
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> int:
        """Return the most bytes allocated at a time."""
        return torch.cuda.max_memory_allocated(self._device)


def peak_memory(device: torch.device) -> ResidentMemory | DeviceMemory:
    """Return the counter that matters for models on ``device``."""
    return DeviceMemory(device) if device.type == "cuda" else ResidentMemory()


@contextmanager
def energy_counter(device: torch.device) -> Iterator[tuple[Callable[[], float] | None, str]]:
    """Give a function that returns the joules a GPU has used so far, or None and why there is none.

    NVML counts millijoules of the whole board since the driver was loaded, other programs' included.
    """
    if device.type != "cuda":
        yield None, f"energy is counted on NVIDIA GPUs only, not on {device.type!r}"
        return
    try:
        import pynvml
    except ImportError:
        yield None, "energy is not counted: the package nvidia-ml-py is not installed"
        return
    try:
        pynvml.nvmlInit()
        # CUDA numbers devices its own way; the UUID means the same one in both worlds.
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except pynvml.NVMLError as error:
        yield None, f"energy is not counted: NVML says {error}"
        return
    try:
        yield lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000, "energy by NVML, whole board"
    finally:
        pynvml.nvmlShutdown()


def machine(device: torch.device) -> dict[str, Any]:
    """Return the names of processor and GPU."""
    names: dict[str, Any] = {"cpu": _cpu_name()}
    if device.type == "cuda":
        names["gpu"] = torch.cuda.get_device_name(device)
    return names


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = (line.partition(":") for line in info.read_text().splitlines())
        if name := next((value.strip() for key, _, value in lines if key.strip() == "model name"), None):
            return name
    return platform.processor() or platform.machine()
