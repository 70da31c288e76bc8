"""Without drafts, the target decodes alone in this package's loop."""

from __future__ import annotations

import pytest
import torch
from transformers import GenerationConfig

from hf_lossy_assist import last_stats
from hf_lossy_assist.evaluation.modes import parse_modes
from hf_lossy_assist.evaluation.requests import batches_of, run_request
from hf_lossy_assist.pairs import Pair
from tests.tiny_models import ARCHITECTURES, noisy_copy, padded, prompt, tiny

FIELDS = {"lossy_mode": "lossless", "num_assistant_tokens": 0}
KWARGS = {"max_new_tokens": 16, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}


@pytest.mark.parametrize("inputs", [{"inputs": prompt()}, padded()], ids=["one", "batch"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_texts_are_the_target_s_own(architecture, inputs):
    target = tiny(architecture)
    expected = target.generate(**inputs, **KWARGS)
    assert torch.equal(target.generate(**inputs, **KWARGS, **FIELDS), expected)
    stats = last_stats(target)
    assert stats.accepted == stats.drafted == 0
    assert stats.target_calls == 16


def test_neither_a_draft_nor_a_lookup_is_asked():
    target = tiny()
    draft = noisy_copy(target)
    draft.register_forward_pre_hook(lambda *_: pytest.fail("the draft was called"))
    expected = target.generate(prompt(), generation_config=GenerationConfig(**KWARGS))
    config = GenerationConfig(**FIELDS, **KWARGS)
    for drafter in ({"assistant_model": draft}, {"prompt_lookup_num_tokens": 4}, {}):
        assert torch.equal(target.generate(prompt(), generation_config=config, **drafter), expected)


def test_it_is_a_mode_of_evaluations():
    target = tiny()
    models = Pair(target, None)
    modes = parse_modes("plain,lossless@0")
    for mode in modes:
        mode.check_draft(model=False, lookup=False)
    (batch,) = batches_of([prompt()[0].tolist()])
    plain, own = (run_request(models, mode, batch, 12) for mode in modes)
    assert torch.equal(plain.rows[0], own.rows[0])
    assert own.work == [(12, 0, 0)]
    assert own.drafted == [0]
