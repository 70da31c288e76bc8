"""Models that run on several processes at once."""

from __future__ import annotations

import torch
import torch.distributed as dist
from transformers import PreTrainedModel


class SharedDecisions:
    """Lets the processes that share one model decide alike: rank 0 decides."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._device = model.device
        mesh = getattr(model, "_device_mesh", None)
        names = () if mesh is None else mesh.mesh_dim_names or ()
        self._group = mesh["tp"].get_group() if "tp" in names else None

    def agree(self, value: float) -> float:  # on rank 0's value
        shared = torch.tensor([value], dtype=torch.float64, device=self._device)
        dist.broadcast(shared, group=self._group, group_src=0)
        return shared.item()

    def seed(self) -> int:
        """Return a seed drawn by rank 0 from torch's global generator."""
        return int(self.agree(float(torch.randint(2**52, ()).item())))


def shared_decisions(model: PreTrainedModel) -> SharedDecisions | None:
    """Return how the processes of a tensor-parallel model agree; None for a single process."""
    return SharedDecisions(model) if is_sharded(model) and dist.is_initialized() else None


def is_sharded(model: PreTrainedModel) -> bool:
    """Tell whether this process holds only a part of the model's weights."""
    return (getattr(model, "_tp_size", None) or 1) > 1


def agreed(model: PreTrainedModel, value: float) -> float:
    """Return ``value``, or rank 0's where several processes compute a model together."""
    shared = shared_decisions(model)
    return value if shared is None else shared.agree(value)


def shared_seed(model: PreTrainedModel, seed: int | None) -> int | None:
    """Return a run's seed: processes that share a model have to draw alike, even without one."""
    shared = shared_decisions(model) if seed is None else None
    return seed if shared is None else shared.seed()
