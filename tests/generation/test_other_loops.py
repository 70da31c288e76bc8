"""Calls that something else than transformers' plain loops would decode are refused by name."""

from __future__ import annotations

import pytest
import torch
import transformers
from transformers import Blip2Config, Blip2ForConditionalGeneration, GenerationConfig, PreTrainedModel, T5Config

from hf_lossy_assist import LossyUnsupportedError, enable, enabled, last_stats
from tests.tiny_models import VOCAB, prompt, tiny

pytestmark = pytest.mark.usefixtures("disabled")


def blip2() -> Blip2ForConditionalGeneration:
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
              "image_size": 8, "patch_size": 4}  # fmt: skip
    reader = {"vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
              "num_attention_heads": 2, "encoder_hidden_size": 16}  # fmt: skip
    text = T5Config(vocab_size=VOCAB, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, initializer_factor=4.0,
                    decoder_start_token_id=0, pad_token_id=0, eos_token_id=None, bos_token_id=1)  # fmt: skip
    config = Blip2Config(
        vision_config=vision, qformer_config=reader, text_config=text.to_dict(), num_query_tokens=2,
        image_token_index=VOCAB - 1,
    )  # fmt: skip
    torch.manual_seed(0)
    return Blip2ForConditionalGeneration(config).eval()


def test_a_model_that_lets_another_decode_is_refused_in_favour_of_that_one():
    target = blip2()
    ids = torch.tensor([[VOCAB - 1, VOCAB - 1, 5, 6]])
    kwargs = {"pixel_values": torch.randn(1, 3, 8, 8), "input_ids": ids, "max_new_tokens": 12}
    plain = target.generate(**kwargs)
    with pytest.raises(LossyUnsupportedError, match=r"Blip2For.* enable .*`model\.language_model`, in place of it"):
        enable(target)
    with enabled(target.language_model, prompt_lookup_num_tokens=3):
        assert target.generate(**kwargs).equal(plain)
        assert last_stats(target.language_model).rounds > 0


def test_a_loop_of_a_model_s_own_is_refused():
    target = tiny()
    target.__class__ = type("Own", (type(target),), {"generate": lambda self, inputs: self._sample(inputs)})
    with pytest.raises(LossyUnsupportedError, match="Own, which has a decoding loop of its own"):
        enable(target)


def parakeet(kind: str) -> PreTrainedModel:
    if not hasattr(transformers, f"ParakeetFor{kind}"):
        pytest.skip("this version of transformers has no such model")
    encoder = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
               "num_mel_bins": 16, "subsampling_conv_channels": 4, "conv_kernel_size": 5}  # fmt: skip
    torch.manual_seed(3)
    config = getattr(transformers, f"Parakeet{kind}Config")(
        encoder_config=encoder, vocab_size=20, decoder_hidden_size=8, num_decoder_layers=1, blank_token_id=19,
        pad_token_id=0,
    )  # fmt: skip
    return getattr(transformers, f"ParakeetFor{kind}")(config).eval()


@pytest.mark.parametrize(("kind", "settings"), [("TDT", {"suppress_tokens": [*range(20, 25)]}), ("RNNT", {})])
def test_a_class_that_takes_no_drafts_is_refused_and_left_alone(kind: str, settings: dict[str, list[int]]):
    target, features = parakeet(kind), torch.randn(1, 64, 16, generator=torch.Generator().manual_seed(0))
    kwargs = {"input_features": features, "attention_mask": torch.ones(1, 64).long(), "decoder_start_token_id": 19}
    kwargs |= settings | {"max_length": 80}  # durations are no tokens
    plain = target.generate(**kwargs).sequences
    with enabled(prompt_lookup_num_tokens=3):
        assert target.generate(**kwargs).sequences.equal(plain)
        target.encoder.register_forward_pre_hook(lambda *_: pytest.fail("the encoder ran"))
        with pytest.raises(LossyUnsupportedError, match=r"Parakeet.* decoding loop of its own; leave the mode out"):
            target.generate(**kwargs, prompt_lookup_num_tokens=3, lossy_mode="lossless")
    with pytest.raises(LossyUnsupportedError, match=r"Parakeet.* call its `generate\(\)` as it is"):
        enable(target, prompt_lookup_num_tokens=3)


BATCHES = {
    "keyword": ({}, {"lossy_mode": "nonsense"}),
    "default": ({"prompt_lookup_num_tokens": 3}, {}),
    "argument": ({}, {"generation_config": GenerationConfig(lossy_mode="topk")}),
}


@pytest.mark.parametrize("method", ["generate_batch", "init_continuous_batching"])
@pytest.mark.parametrize("case", BATCHES)
def test_continuous_batching_is_refused(case: str, method: str):
    target = tiny()
    defaults, kwargs = BATCHES[case]
    inputs = [[[3, 4, 5]]] if method == "generate_batch" else []
    with enabled(target, **defaults):
        with pytest.raises(LossyUnsupportedError, match=rf"`lossy_mode` .* `{method}\(\)`.*`lossy_mode=None`"):
            getattr(target, method)(*inputs, **kwargs)
        assert target.generate_batch([], **kwargs | {"lossy_mode": None}) == {}


@pytest.mark.parametrize("place", ["keyword", "model"])
def test_paged_caches_are_refused(place: str):
    target = tiny()
    kwargs = {"cache_implementation": "paged"} if place == "keyword" else {}
    if not kwargs:
        target.generation_config.cache_implementation = "paged"
    with enabled(target), pytest.raises(LossyUnsupportedError, match="`cache_implementation` 'paged'"):
        target.generate(prompt(), **kwargs, prompt_lookup_num_tokens=3, lossy_mode="lossless")
