"""Tiny random models with an encoder."""

from __future__ import annotations

import copy

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

from tests.tiny_models import VOCAB, noisy_copy

_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0, "vocab_size": VOCAB}
_SMALL = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4,
          "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}  # fmt: skip


def t5():
    config = T5Config(**_IDS, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, initializer_factor=4.0)
    return T5ForConditionalGeneration(config)


def bart():
    return BartForConditionalGeneration(BartConfig(**_IDS, **_SMALL, init_std=0.3, forced_eos_token_id=None))


def whisper(**ids):
    return WhisperForConditionalGeneration(
        WhisperConfig(**_IDS | ids, **_SMALL, num_mel_bins=8, max_source_positions=10, max_target_positions=64,
                      init_std=0.3, suppress_tokens=None, begin_suppress_tokens=None)
    )  # fmt: skip


ARCHITECTURES = {"t5": t5, "bart": bart, "whisper": whisper}


def made(name: str):
    torch.manual_seed(0)
    model = ARCHITECTURES[name]().eval()
    model.generation_config.eos_token_id = None
    return model


def decoder_of(target, noise: float = 0.02, kind: type = WhisperForCausalLM):
    """Return a draft without an encoder, as Distil-Whisper's."""
    draft = kind(copy.deepcopy(target.config)).to(target.dtype).eval()
    draft.load_state_dict(noisy_copy(target, noise).state_dict(), strict=False)
    return draft
