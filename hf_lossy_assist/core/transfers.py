"""Copies between the host and a device that do not make the host wait for the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_IN_ORDER = ("cpu", "cuda")
"""Types of device that make copies in the order of their work; others may read memory that is used again already."""


def to_device(values: Sequence[Any], device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Return the host's numbers as a tensor on a device."""
    return torch.tensor(values, dtype=dtype).to(device, non_blocking=device.type in _IN_ORDER)


def looks_late(device: torch.device) -> bool:
    """Whether to enqueue work on a device before reading its last result."""
    return device.type == "cuda"


class Look:
    """Values on their way to the host."""

    def __init__(self, values: Tensor) -> None:
        self._values, self._there = values.to("cpu", non_blocking=values.device.type in _IN_ORDER), None
        if looks_late(values.device):
            self._there = torch.cuda.Event()
            self._there.record(torch.cuda.current_stream(values.device))

    def tolist(self) -> list[Any]:
        """Wait until the values are there; work that the device was given later goes on."""
        if self._there is not None:
            self._there.synchronize()
        return self._values.tolist()
