"""Models that run on several processes at once."""

from __future__ import annotations

import torch
import torch.distributed as dist
from transformers import PreTrainedModel


def is_sharded(model: PreTrainedModel) -> bool:
    """Tell whether this process holds only a part of the model's weights."""
    return (getattr(model, "_tp_size", None) or 1) > 1


def shared_seed(model: PreTrainedModel, seed: int | None) -> int | None:
    """Return a run's seed: processes that share a model have to draw alike, even without one."""
    if seed is not None or not is_sharded(model) or not dist.is_initialized():
        return seed
    mesh = getattr(model, "_device_mesh", None)
    names = () if mesh is None else mesh.mesh_dim_names or ()
    shared = torch.randint(2**52, (1,)).to(model.device)
    dist.broadcast(shared, group=mesh["tp"].get_group() if "tp" in names else None, group_src=0)
    return int(shared)
