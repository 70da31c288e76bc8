"""Targets with an encoder."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable

import pytest
import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    BartForCausalLM,
    DonutSwinConfig,
    DonutSwinModel,
    DynamicCache,
    EncoderDecoderCache,
    MBartConfig,
    MBartForCausalLM,
    StaticCache,
    VisionEncoderDecoderModel,
    WhisperForCausalLM,
)

from hf_lossy_assist import LossyError, last_stats
from hf_lossy_assist.compat.caches import CACHE
from tests.architectures import made as of_family
from tests.encoder_decoders import ARCHITECTURES, bart, decoder_of, made, t5
from tests.nightly import nightly, spread
from tests.parity import assert_lossless
from tests.tiny_models import LENGTHS, VOCAB, noisy_copy, padded, prompt, tiny
from tests.trial.exact import CHAINS, DRAFTERS, assert_refused, assert_right

GREEDY = {"do_sample": False, "max_new_tokens": 24, "return_dict_in_generate": True}


def seen(name: str, batch: int = 1):
    """Return what the encoder is to read."""
    if name != "whisper":
        return padded(LENGTHS[:batch]) if batch > 1 else {"input_ids": prompt()}
    features = torch.randn(batch, 8, 20, generator=torch.Generator().manual_seed(0))
    return {"input_features": features, "language": None}


class BartReader(BartForCausalLM):
    """A decoder to which the encoder's outputs come where its inputs are prepared, and whose forward wants a mask."""

    def forward(self, input_ids, attention_mask, **kwargs):
        return super().forward(input_ids, attention_mask, **kwargs)

    def prepare_inputs_for_generation(self, *args, encoder_outputs=None, **kwargs):
        inputs = super().prepare_inputs_for_generation(*args, **kwargs)
        return inputs | {"encoder_hidden_states": encoder_outputs.last_hidden_state}


DECODERS = {"whisper": WhisperForCausalLM, "bart": BartReader}


@spread(name=ARCHITECTURES, batch=[1, 4])
def test_lossless_parity(name: str, batch: int):
    target = made(name)
    for noise in (0.0, 0.03):
        assert_lossless(target, {"assistant_model": noisy_copy(target, noise)}, **seen(name, batch), **GREEDY)
        stats = last_stats(target)
        assert stats.acceptance_rate == 1 if noise == 0 else stats.accepted > 0
        assert len(stats.rows) == batch


@spread(name=DECODERS, batch=[1, 4])
def test_a_decoder_that_shares_the_target_s_encoder(name: str, batch: int):
    target = made(name)
    for noise in (0.0, 0.02):
        drafting = {"assistant_model": decoder_of(target, noise, DECODERS[name])}
        assert_lossless(target, drafting, **seen(name, batch), **GREEDY)
        stats = last_stats(target)
        # The encoder's padding is hidden from the target alone.
        assert stats.acceptance_rate == 1 if noise == 0 and batch == 1 else stats.accepted > 0


def test_encoder_outputs_may_be_passed_in_where_they_are_shared():
    target = made("bart")
    draft = decoder_of(target, 0.0, BartReader)
    with torch.no_grad():
        outputs = target.get_encoder()(**seen("bart"))
    plain = target.generate(**seen("bart"), **GREEDY)
    ours = target.generate(encoder_outputs=outputs, **GREEDY, assistant_model=draft, lossy_mode="lossless")
    assert ours.sequences.equal(plain.sequences)
    assert ours.lossy_stats.acceptance_rate == 1


@pytest.mark.parametrize("eos", [None, 26], ids=["together", "apart"])
@pytest.mark.parametrize("batch", [1, 4])
def test_recorded_outputs_are_those_of_plain_generation(batch: int, eos: int | None):
    """After a row's end too, where plain generation goes on over padding."""
    target = made("bart")
    target.set_attn_implementation("eager")
    asked = {f"output_{name}": True for name in ("scores", "logits", "hidden_states", "attentions")}
    kwargs = GREEDY | seen("bart", batch) | asked | {"eos_token_id": eos}
    plain, ours = assert_lossless(target, {"assistant_model": noisy_copy(target, 0.01)}, **kwargs)
    for name in ("scores", "logits", "encoder_hidden_states", "encoder_attentions"):
        for a, b in zip(plain[name], ours[name], strict=True):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
    for name in ("decoder_hidden_states", "decoder_attentions", "cross_attentions"):
        for step, (a, b) in enumerate(zip(plain[name], ours[name], strict=True)):
            for layer_a, layer_b in zip(a, b, strict=True):
                torch.testing.assert_close(layer_a, layer_b, atol=1e-4, rtol=1e-4, msg=f"{name} of step {step}")


def donut():
    """Return a model whose encoder's attentions are those of windows, and images."""
    encoder = DonutSwinConfig(image_size=16, patch_size=2, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=4)
    decoder = MBartConfig(
        vocab_size=VOCAB, d_model=32, encoder_layers=1, decoder_layers=1, decoder_attention_heads=4,
        decoder_ffn_dim=48, is_decoder=True,
        add_cross_attention=True, scale_embedding=False, init_std=0.3,
    )  # fmt: skip
    model = VisionEncoderDecoderModel(encoder=DonutSwinModel(encoder), decoder=MBartForCausalLM(decoder))
    ends = {"pad_token_id": 0, "eos_token_id": None, "decoder_start_token_id": 1}
    vars(model.generation_config).update(ends)
    return model, {"pixel_values": torch.randn(3, 3, 16, 16)}


def pegasus_x():
    """Return a model whose encoder's attentions are pairs, and texts."""
    model = of_family("pegasus_x", num_global_tokens=2, block_size=4).float()
    model.generation_config.eos_token_id = None
    return model, padded([8, 8, 8])


@pytest.mark.parametrize("make", [donut, pegasus_x])
def test_the_encoder_s_outputs_are_those_of_the_batch(make: Callable):
    torch.manual_seed(0)
    target, inputs = make()
    target.eval().set_attn_implementation("eager")
    kwargs = GREEDY | inputs | {"output_attentions": True, "output_hidden_states": True}
    plain, ours = assert_lossless(target, {"prompt_lookup_num_tokens": 3}, **kwargs)
    assert last_stats(target).accepted > 0
    for name in ("encoder_attentions", "encoder_hidden_states"):
        assert len(ours[name]) == len(plain[name])
        torch.testing.assert_close(ours[name], plain[name])


EITHER = [("t5", "assistant"), ("bart", "lookup"), ("whisper", "assistant")]


@pytest.mark.parametrize(
    ("name", "drafter"),
    [
        *nightly(itertools.product(ARCHITECTURES, ["assistant", "lookup"]), but=EITHER),
        *((name, "decoder") for name in DECODERS),
    ],
)
def test_every_drafter_writes_plain_texts_in_spite_of_a_static_cache(name: str, drafter: str):
    target = made(name)
    draft = decoder_of(target, 0.02, DECODERS[name]) if drafter == "decoder" else noisy_copy(target, 0.02)
    drafting = {"prompt_lookup_num_tokens": 3} if drafter == "lookup" else {"assistant_model": draft}
    for batch in (1, 3):
        assert_lossless(target, drafting | {"cache_implementation": "static"}, **seen(name, batch), **GREEDY)


def test_a_static_cache_of_the_user_s_is_refused():
    target = made("bart")
    cache = EncoderDecoderCache(StaticCache(target.config, max_cache_len=64), DynamicCache())
    with pytest.raises(LossyError, match=rf"`{CACHE}` is a static cache, but Bart.* has an encoder"):
        target.generate(
            **seen("bart"), **GREEDY, **{CACHE: cache}, assistant_model=noisy_copy(target, 0.01), lossy_mode="lossless"
        )
    assert not cache.get_seq_length()


def test_a_draft_that_cannot_see_is_refused():
    with pytest.raises(LossyError, match="encoder"):
        made("t5").generate(**seen("t5"), **GREEDY, assistant_model=tiny(), lossy_mode="lossless")


@pytest.mark.parametrize("make", [t5, bart])
def test_sequences_of_one_prompt_share_what_its_encoder_reads(make):
    """The draft is the target itself, so that everything is kept if it reads the same as the target does."""
    torch.manual_seed(0)
    target = make().eval()
    out = target.generate(
        torch.cat([prompt(9, seed=1), prompt(9, seed=2)]), assistant_model=copy.deepcopy(target), lossy_mode="lossless",
        lossy_config={"seed": 0}, num_return_sequences=3, **{**GREEDY, "do_sample": True},
    )  # fmt: skip
    assert len(out.sequences) == 6
    assert out.lossy_stats.acceptance_rate == 1


@pytest.mark.parametrize("states", [True, False])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_decoder_with_cross_attention_alone(rows: int, states: bool):
    """It wraps its cache, whose other half does not move with rows."""
    target = of_family("gpt2", add_cross_attention=True)
    inputs = {name: x[:rows] for name, x in padded((5, 9, 7)).items()}
    if states:
        inputs["encoder_hidden_states"] = torch.ones(rows, 6, target.config.hidden_size, dtype=target.dtype)
    for drafter in CHAINS if states else DRAFTERS:
        assert_right(target, inputs, DRAFTERS[drafter](noisy_copy(target)))


def test_a_cache_that_would_mix_a_text_s_keys_with_an_encoder_s_is_refused():
    target = of_family("bart")
    states = torch.zeros(1, 6, target.config.hidden_size, dtype=target.dtype)
    inputs = {"input_ids": prompt(), "encoder_hidden_states": states}
    assert_refused(target, inputs, CHAINS["look-up"](target), "EncoderDecoderCache(DynamicCache(), DynamicCache())")


def test_padding_in_a_decoder_s_prompt():
    """M2M-100 leaves out padding of a forward when it counts positions, but counts all tokens of forwards before."""
    target = of_family("m2m_100", auto=AutoModelForSeq2SeqLM)
    texts = {f"decoder_{name}": x for name, x in padded((5, 2, 4)).items()}
    for inputs in ({**padded((9, 4, 6)), **texts}, {"input_ids": prompt(), "decoder_input_ids": prompt() * 0 + 7}):
        inputs["decoder_input_ids"][-1, 1:3] = 0
        assert_right(target, inputs, CHAINS["model"](noisy_copy(target)))
