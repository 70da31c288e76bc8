"""Drafts whose tokens dropped heads agree on to any degree."""

from __future__ import annotations

import torch
from torch import Tensor

from hf_lossy_assist.core.distributions import Randomness
from hf_lossy_assist.core.messages import Verification

VOCABULARY = 300


def verification(do_sample: bool = False, sharpness: float = 3.0, seed: int = 0) -> Verification:
    """Random laws around one: paths and draft differ from it by about as much, so both criteria decide."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, VOCABULARY, generator=generator)

    common = sharpness * noise(1, 6)
    common[..., -50:] = -torch.inf  # as top-k leaves it
    paths = common[:, None, :5] + 0.5 * noise(1, 4, 5)
    return Verification(
        tokens=(common[:, :5] + noise(1, 5)).argmax(-1),
        logits=common,
        draft_logits=common[:, :5] + 0.5 * noise(1, 5),
        do_sample=do_sample,
        randomness=Randomness(seed),
        dropped_logits=paths,
        centroid_logits=paths.mean(1),
    )
