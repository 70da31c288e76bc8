"""Models that run on several processes at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from transformers import PreTrainedModel


def is_sharded(model: PreTrainedModel) -> bool:
    """Tell whether this process holds only a part of the model's weights."""
    return (getattr(model, "_tp_size", None) or 1) > 1


def agreement_of(model: PreTrainedModel) -> Callable[[float], float]:
    """Return a function from a number to rank 0's, if several processes compute ``model`` together."""
    if not is_sharded(model) or not dist.is_initialized():
        return float
    device, mesh = model.device, getattr(model, "_device_mesh", None)
    names = () if mesh is None else mesh.mesh_dim_names or ()
    group = mesh["tp"].get_group() if "tp" in names else None

    def agree(value: float) -> float:
        shared = torch.tensor([value], dtype=torch.float64, device=device)
        dist.broadcast(shared, group=group, group_src=0)
        return shared.item()

    return agree


def shared_seed(model: PreTrainedModel, seed: int | None) -> int | None:
    """Return a run's seed: processes that share a model have to draw alike, even without one."""
    if seed is not None or not is_sharded(model) or not dist.is_initialized():
        return seed
    return int(agreement_of(model)(torch.randint(2**52, ()).item()))
