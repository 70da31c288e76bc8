"""Targets with an encoder."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperForCausalLM,
    WhisperForConditionalGeneration,
)

from hf_lossy_assist import LossyError, last_stats
from tests.acceptors.table import ROWS, row_id
from tests.models import VOCAB, noisy_copy, padded, prompt, tiny
from tests.parity import assert_same_rows

GREEDY = {"do_sample": False, "max_new_tokens": 24, "return_dict_in_generate": True}
_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0, "vocab_size": VOCAB}
_SMALL = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4,
          "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}  # fmt: skip


def t5():
    config = T5Config(**_IDS, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, initializer_factor=4.0)
    return T5ForConditionalGeneration(config)


def bart():
    return BartForConditionalGeneration(BartConfig(**_IDS, **_SMALL, init_std=0.3, forced_eos_token_id=None))


def whisper():
    return WhisperForConditionalGeneration(
        WhisperConfig(**_IDS, **_SMALL, num_mel_bins=8, max_source_positions=10, max_target_positions=64, init_std=0.3,
                      suppress_tokens=None, begin_suppress_tokens=None)
    )  # fmt: skip


ARCHITECTURES = {"t5": t5, "bart": bart, "whisper": whisper}


SOME_RULES = ("topk", "ears", "dropmatch", "fly")


def made(name: str):
    torch.manual_seed(0)
    model = ARCHITECTURES[name]().eval()
    model.generation_config.eos_token_id = None
    return model


def seen(name: str, batch: int = 1):
    """Return what the encoder is to read."""
    if name != "whisper":
        return padded() if batch > 1 else {"input_ids": prompt()}
    features = torch.randn(batch, 8, 20, generator=torch.Generator().manual_seed(0))
    return {"input_features": features, "language": None}


def drafts(target, noise: float = 0.01):
    return noisy_copy(target, noise)


def decoder_only(target, noise: float):
    """Return a draft without an encoder, as Distil-Whisper's."""
    draft = WhisperForCausalLM(copy.deepcopy(target.config)).eval()
    weights = noisy_copy(target, noise).state_dict()
    draft.load_state_dict(weights, strict=False)
    return draft


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_lossless_parity(name: str, batch: int):
    target = made(name)
    plain = target.generate(**seen(name, batch), **GREEDY, output_logits=True)
    for noise in (0.0, 0.03):
        ours = target.generate(
            **seen(name, batch), **GREEDY, assistant_model=drafts(target, noise), lossy_mode="lossless"
        )
        assert_same_rows(ours.sequences, plain)
        stats = last_stats(target)
        assert stats.acceptance_rate == 1 if noise == 0 else stats.accepted > 0
        assert len(stats.rows) == batch


def test_whisper_with_a_decoder_that_shares_its_encoder():
    target = made("whisper")
    plain = target.generate(**seen("whisper"), **GREEDY, output_logits=True)
    for noise in (0.0, 0.02):
        draft = decoder_only(target, noise)
        ours = target.generate(**seen("whisper"), **GREEDY, assistant_model=draft, lossy_mode="lossless")
        assert_same_rows(ours.sequences, plain)
        stats = last_stats(target)
        assert stats.acceptance_rate == 1 if noise == 0 else stats.accepted > 0


@pytest.mark.parametrize("row", [row for row in ROWS if row.mode in SOME_RULES], ids=row_id)
def test_lossy_rules(row):
    target = made("t5")
    draft = drafts(target, 0.1)
    kwargs = GREEDY | {"do_sample": True} | seen("t5")
    out = target.generate(**kwargs, assistant_model=draft, **row.keywords(target, draft, seed=0))
    assert len(out.lossy_stats.trace) == 24


@pytest.mark.parametrize("batch", [1, 4])
def test_recorded_outputs_are_those_of_plain_generation(batch: int):
    target = made("bart")
    target.set_attn_implementation("eager")
    asked = {f"output_{name}": True for name in ("scores", "logits", "hidden_states", "attentions")}
    kwargs = GREEDY | seen("bart", batch) | asked
    plain = target.generate(**kwargs)
    ours = target.generate(**kwargs, assistant_model=drafts(target), lossy_mode="lossless")
    assert ours.sequences.equal(plain.sequences)
    for name in ("scores", "logits", "encoder_hidden_states", "encoder_attentions"):
        for a, b in zip(plain[name], ours[name], strict=True):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
    for name in ("decoder_hidden_states", "decoder_attentions", "cross_attentions"):
        for step, (a, b) in enumerate(zip(plain[name], ours[name], strict=True)):
            for layer_a, layer_b in zip(a, b, strict=True):
                torch.testing.assert_close(layer_a, layer_b, atol=1e-4, rtol=1e-4, msg=f"{name} of step {step}")


def test_prompt_lookup_in_the_decoder():
    target = made("t5")
    kwargs = GREEDY | seen("t5") | {"decoder_input_ids": torch.tensor([[0, 5, 6, 7, 5, 6, 7]])}
    plain = target.generate(**kwargs, output_logits=True)
    ours = target.generate(**kwargs, prompt_lookup_num_tokens=3, lossy_mode="lossless")
    assert_same_rows(ours.sequences, plain)
    assert ours.lossy_stats.drafted > 0


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
