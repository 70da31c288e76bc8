"""``benchmarks.offloaded``: a target on disk decodes as before."""

from __future__ import annotations

import torch

from benchmarks.offloaded import offload
from hf_lossy_assist.evaluation.modes import DecodingMode, Models
from hf_lossy_assist.evaluation.requests import batches_of, run_request
from tests.tiny_models import noisy_copy, prompt, tiny


def test_weights_are_on_disk_and_texts_are_the_same(tmp_path):
    target = tiny()
    models, [batch] = Models(target, noisy_copy(target)), batches_of(prompt().tolist())
    mode = DecodingMode("topk", "topk", gamma=3)
    before = run_request(models, mode, batch, 12)
    models = offload(models, tmp_path)
    assert all(parameter.is_meta for parameter in models.target.parameters())
    after = run_request(models, mode, batch, 12)
    assert torch.equal(before.rows[0], after.rows[0])
    assert before.stats.target_calls == after.stats.target_calls
