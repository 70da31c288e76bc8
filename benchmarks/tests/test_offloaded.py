"""``benchmarks.offloaded``: a target on disk decodes as before."""

from __future__ import annotations

import torch

import hf_lossy_assist
from benchmarks.offloaded import offload
from hf_lossy_assist.pairs import Pair
from tests.tiny_models import noisy_copy, prompt, tiny


def test_weights_are_on_disk_and_texts_are_the_same(tmp_path):
    target = tiny()
    pair = Pair(target, noisy_copy(target), None, None)
    kept = {"assistant_model": pair.draft, "lossy_mode": "topk", "num_assistant_tokens": 3}

    def texts(models: Pair) -> torch.Tensor:
        hf_lossy_assist.enable(models.target)
        return models.target.generate(prompt(), do_sample=False, max_new_tokens=12, pad_token_id=0, **kept)

    before, offloaded = texts(pair), offload(pair, tmp_path)
    assert all(parameter.is_meta for parameter in offloaded.target.parameters())
    assert torch.equal(before, texts(offloaded))
