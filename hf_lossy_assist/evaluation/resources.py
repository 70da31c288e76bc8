"""Counters of memory and energy, and the names of processor and GPU."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch


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
