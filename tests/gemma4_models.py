"""A tiny random Gemma 4, and an assistant that reads its keys."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from tests.tiny_models import VOCAB

pytest.importorskip("transformers.models.gemma4_assistant", reason="no Gemma 4 assistants in this version")
from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM, Gemma4ForCausalLM, Gemma4TextConfig

WINDOW = 8


def text_config(layers: int, shared: int, **values) -> Gemma4TextConfig:
    return Gemma4TextConfig(
        **{
            "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": layers,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "global_head_dim": 8,
            "num_global_key_value_heads": 2, "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0,
            "num_kv_shared_layers": shared, "layer_types": ["sliding_attention", "full_attention"] * (layers // 2),
            "sliding_window": WINDOW, "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2,
            "pad_token_id": 0, "initializer_range": 0.2,
        }
        | values
    )  # fmt: skip


def tiny_gemma4() -> PreTrainedModel:
    torch.manual_seed(0)
    return Gemma4ForCausalLM(text_config(4, 0)).eval()


def tiny_assistant() -> PreTrainedModel:
    torch.manual_seed(1)
    config = text_config(2, 2, hidden_size=16, enable_moe_block=False, use_double_wide_mlp=False)
    return Gemma4AssistantForCausalLM(Gemma4AssistantConfig(text_config=config, backbone_hidden_size=32)).eval()
