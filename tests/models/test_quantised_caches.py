"""Quantised caches: each row has the text that it has alone, and what can't be rolled back is refused."""

from __future__ import annotations

import pytest
from transformers import cache_utils

from hf_lossy_assist import LossyError
from tests.dflash_heads import random_dflash
from tests.eagle3_heads import random_head
from tests.mtp_checkpoints import loaded, write
from tests.parity import assert_lossless
from tests.tiny_models import noisy_copy, padded, prompt, tiny

pytestmark = pytest.mark.skipif(
    not hasattr(cache_utils, "Fp8QuantizedLayer"), reason="this version has no backend that needs no other package"
)
FP8 = {"cache_implementation": "quantized", "cache_config": {"backend": "fp8"}}
GREEDY = {"do_sample": False, "eos_token_id": None, "max_new_tokens": 16, "return_dict_in_generate": True}
DRAFTING = {
    "a model": lambda: {"assistant_model": noisy_copy(tiny("llama"))},
    "EAGLE-3": lambda: {"assistant_model": random_head()},
    "DFlash": lambda: {"assistant_model": random_dflash()},
    "look-up, else DFlash": lambda: {"assistant_model": random_dflash(), "prompt_lookup_num_tokens": 3},
    "its first layer": lambda: {"assistant_early_exit": 1},
    "MTP": lambda: {"use_mtp": True},
}


@pytest.mark.parametrize("name", DRAFTING)
def test_rows_have_the_texts_that_they_have_alone(name: str, tmp_path):
    target = loaded(write("mimo", tmp_path)) if name == "MTP" else tiny("llama")
    batch, drafting = padded((3, 9)), FP8 | DRAFTING[name]()
    ours = target.generate(**batch, **GREEDY, **drafting, lossy_mode="lossless")
    assert ours.lossy_stats.drafted
    for ids, mask, text in zip(batch["input_ids"], batch["attention_mask"], ours.sequences, strict=True):
        alone = ids[mask.bool()][None]
        _, one = assert_lossless(target, DRAFTING[name](), input_ids=alone, **GREEDY | FP8)
        assert text[ids.shape[0] - alone.shape[1] :].equal(one.sequences[0])


@pytest.mark.parametrize("draft", [lambda: noisy_copy(tiny("llama")), random_head])
def test_trees_are_refused_before_any_forward(draft):
    target = tiny("llama")
    target.register_forward_pre_hook(lambda *_: pytest.fail("a forward ran"))
    with pytest.raises(LossyError, match=r"`tree` .* `cache_implementation` 'quantized' asks for it; leave it out"):
        target.generate(
            prompt(),
            assistant_model=draft(),
            lossy_mode="lossless",
            lossy_config={"tree": {"depth": 2}},
            **GREEDY | FP8,
        )
