"""Static caches where the caller has put something around a model's forward, or its weights elsewhere."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from hf_lossy_assist import enabled
from tests.nightly import spread
from tests.parity import assert_same_rows
from tests.tiny_models import noisy_copy, padded, prompt, tiny
from tests.trial.surroundings import SURROUNDINGS, forward_replaced

GREEDY = {"do_sample": False, "max_new_tokens": 16, "return_dict_in_generate": True, "cache_implementation": "static"}


CHANGES = {
    **{name: SURROUNDINGS[name] for name in ("wrapped", "autocast", "hooked", "offloaded")},
    "around the decoder": lambda model: SURROUNDINGS["wrapped"](model.model),
    "torch.compile": partial(forward_replaced, partial(torch.compile, backend="eager", dynamic=True)),
}


@pytest.mark.filterwarnings("ignore:a static cache has no effect here")
@spread(name=CHANGES, whose=["draft", "target"])
def test_texts_are_plain(name: str, whose: str):
    """Of a batch, rows end apart."""
    inputs = {"input_ids": prompt()} if whose == "target" else padded()
    models = {"target": tiny(), "draft": noisy_copy(tiny(), 0.05)}
    settings = GREEDY | inputs | {"eos_token_id": list(range(3, 13))}
    plain = models["target"].generate(**settings, output_logits=True)
    with CHANGES[name](models[whose]), enabled():
        ours = models["target"].generate(**settings, assistant_model=models["draft"], lossy_mode="lossless")
    assert_same_rows(ours.sequences, plain)
    assert ours.lossy_stats.accepted > 0
