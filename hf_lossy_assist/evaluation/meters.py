"""Meters of a ``generate()`` call: forwards of both models, memory, energy; and where a measurement was made."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ..compat import versions_of
from ..store.folder import without_folders
from ..version import __version__

_PROCESS = Path("/proc/self")

Clock = Callable[[], float]

CLOCKS: Mapping[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}
"""``cpu`` is the computing time of all this process's threads. With one thread, other load does not change it."""


@dataclass
class ForwardTimes:
    """The forwards of one model during a call."""

    calls: list[float] = field(default_factory=list)  # seconds of each: the decoder, and the LM head where called
    first_end: float | None = None  # when the first ended, on the meter's clock

    @property
    def seconds(self) -> float:
        return sum(self.calls)


@contextmanager
def metered(
    model: PreTrainedModel, synchronize: Callable[[], None] = lambda: None, clock: Clock = time.perf_counter
) -> Iterator[ForwardTimes]:
    """Time the forwards of a model inside a block.

    A forward is the decoder and the LM head, as modules; everything around them counts as the loop's time. On a GPU,
    ``synchronize`` has to wait for the device, or the clock would only show how long it takes to queue kernels.

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
        forwards.calls.append(0.0)  # `elapsed` reads their number
        forwards.calls[-1] += elapsed()

    def after_head(module: nn.Module, args: Any, output: Any) -> None:
        forwards.calls[-1] += elapsed()

    with ExitStack() as hooks:
        for module, after in ((model.get_decoder(), after_decoder), (model.get_output_embeddings(), after_head)):
            # Outermost: the work of other hooks belongs to the forward.
            hooks.callback(module.register_forward_pre_hook(before, prepend=True).remove)
            hooks.callback(module.register_forward_hook(after).remove)
        yield forwards


def synchronizer(device: torch.device) -> Callable[[], None]:
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    return lambda: None


def reset_peak_memory(device: torch.device, process: Path = _PROCESS) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif (refs := process / "clear_refs").exists():  # only Linux can reset the peak
        refs.write_text("5")


def peak_memory(device: torch.device, process: Path = _PROCESS) -> int:
    """Return the peak in bytes, weights included: torch's allocations on a GPU, else the process's resident set."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if (status := process / "status").exists():
        lines = (line.split() for line in status.read_text().splitlines())
        return next(int(words[1]) * 1024 for words in lines if words[0] == "VmHWM:")
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@contextmanager
def energy_counter(device: torch.device) -> Iterator[Callable[[], float] | None]:
    """Give a function that returns the joules that a GPU has used so far, or None where nobody counts them.

    NVML counts the energy of the whole board, other programs' included. It needs the package ``nvidia-ml-py``.
    """
    try:
        import pynvml
    except ImportError:
        pynvml = None
    if device.type != "cuda" or pynvml is None:
        yield None
        return
    try:
        pynvml.nvmlInit()
        # CUDA and NVML number devices differently, so the UUID names it.
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000
    finally:
        pynvml.nvmlShutdown()


def machine(device: torch.device) -> dict[str, Any]:
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


def provenance(device: torch.device | str, **settings: Any) -> dict[str, Any]:
    """Return versions, command line, date and machine of this run, with ``settings`` of the measurement.

    Paths to elsewhere are without their folders.
    """
    record = {
        "hf_lossy_assist": __version__,
        **versions_of("transformers"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "argv": _command_line(sys.orig_argv, sys.argv[1:]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "threads": torch.get_num_threads(),
        "device": str(device),
        **settings,
    }
    return without_folders(record)


def _command_line(started: list[str], arguments: list[str]) -> list[str]:
    """Return the command line as a user would type it, with the package's command or the module that was run."""
    *before, program = started[: len(started) - len(arguments)]
    is_study = before[-1:] == ["-m"] and program != "hf_lossy_assist"
    return [*(["python", "-m", program] if is_study else ["lossy-assist"]), *arguments]
