"""Models that run on several processes at once."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from transformers import PreTrainedModel


class SharedDecisions:
    """Lets the processes that compute one model's forwards together decide alike: rank 0 decides.

    Parameters
    ----------
    model
        The model.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._device = model.device
        mesh = getattr(model, "_device_mesh", None)
        names = () if mesh is None else mesh.mesh_dim_names or ()
        self._group = mesh["tp"].get_group() if "tp" in names else None

    def agree(self, value: float) -> float:
        """Return rank 0's value."""
        shared = torch.tensor([value], dtype=torch.float64, device=self._device)
        dist.broadcast(shared, group=self._group, group_src=0)
        return shared.item()

    def seed(self) -> int:
        """Return a seed that rank 0 has drawn from torch's global generator."""
        return int(self.agree(float(torch.randint(2**52, ()).item())))

    def clock(self) -> float:
        """Return rank 0's time in seconds."""
        return self.agree(time.perf_counter())


def shared_decisions(model: PreTrainedModel) -> SharedDecisions | None:
    """Return how the processes of a tensor-parallel model agree; None where one process runs it alone."""
    return SharedDecisions(model) if is_sharded(model) and dist.is_initialized() else None


def is_sharded(model: PreTrainedModel) -> bool:
    """Tell whether this process holds a part of the model's weights only."""
    return (getattr(model, "_tp_size", None) or 1) > 1


def shared_clock(model: PreTrainedModel) -> Callable[[], float]:
    """Return a clock that shows all processes of a model the same time."""
    shared = shared_decisions(model)
    return time.perf_counter if shared is None else shared.clock


def shared_seed(model: PreTrainedModel, seed: int | None) -> int | None:
    """Return a run's seed: processes that compute a model together have to draw alike, also without one."""
    shared = shared_decisions(model) if seed is None else None
    return seed if shared is None else shared.seed()
