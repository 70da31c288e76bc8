"""Tiny random models of every family whose layers keep a state instead of, or beside, keys and values."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from tests.tiny_models import VOCAB

_TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
}
_ATTENTION = {"intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_MAMBA = {"state_size": 8, "expand": 2}
_MAMBA_2 = {"mamba_n_heads": 8, "mamba_d_state": 8, "mamba_d_head": 8, "mamba_chunk_size": 8}
_DELTA = {
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}
_CONV = {"conv_L_cache": 3, "layer_types": ["conv", "full_attention"]}

CONFIGS: dict[str, dict[str, Any]] = {
    "Mamba": _MAMBA,
    "Mamba2": _MAMBA | {"num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 8},
    "FalconMamba": _MAMBA,
    "Jamba": _ATTENTION
    | {
        "num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8,
        "use_mamba_kernels": False,
    },
    "Bamba": _ATTENTION | _MAMBA_2 | {"attn_layer_indices": [1]},
    "Zamba": _ATTENTION
    | {
        "num_key_value_heads": 4, "mamba_d_state": 8, "num_hidden_layers": 4, "use_mamba_kernels": False,
        "attn_layer_period": 2, "attn_layer_offset": 1,
    },
    "Zamba2": _ATTENTION
    | {
        "num_key_value_heads": 4, "mamba_d_state": 8, "n_mamba_heads": 8, "chunk_size": 8,
        "layers_block_type": ["mamba", "hybrid"], "use_mamba_kernels": False,
    },
    "FalconH1": _ATTENTION | _MAMBA_2 | {"mamba_d_ssm": 64},
    "GraniteMoeHybrid": _ATTENTION
    | _MAMBA_2
    | _EXPERTS
    | {"shared_intermediate_size": 48, "layer_types": ["mamba", "attention"]},
    "Qwen3Next": _ATTENTION
    | _DELTA
    | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24},
    "Qwen3_5": _ATTENTION | _DELTA,
    "NemotronH": _ATTENTION
    | {
        "head_dim": 8, "layers_block_type": ["mamba", "attention"], "ssm_state_size": 8, "mamba_num_heads": 8,
        "mamba_head_dim": 8, "n_groups": 1, "chunk_size": 8, "use_mamba_kernels": False,
    },
    "OlmoHybrid": _ATTENTION | {k: v for k, v in _DELTA.items() if k != "head_dim"},
    "KimiLinear": _ATTENTION
    | _EXPERTS
    | {
        "num_key_value_heads": 4, "moe_intermediate_size": 24, "kv_lora_rank": 8, "qk_rope_head_dim": 4,
        "v_head_dim": 8, "qk_nope_head_dim": 4, "linear_head_dim": 8, "linear_num_heads": 4,
        "layer_types": ["linear_attention", "full_attention"], "mlp_layer_types": ["dense", "sparse"],
    },
    "Lfm2": _ATTENTION | _CONV,
    "Lfm2Moe": _ATTENTION
    | _CONV
    | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "num_dense_layers": 1},
    "Zaya": _ATTENTION | {"head_dim": 8, "num_experts": 4, "moe_intermediate_size": 24, "router_hidden_size": 8},
    "RecurrentGemma": _ATTENTION | {"attention_window_size": 16, "block_types": ["recurrent", "attention"]},
    "Rwkv": {"attention_hidden_size": 32, "intermediate_size": 48, "context_length": 256},
    "xLSTM": {"num_heads": 4, "embedding_dim": 32},
    "MiniMax": _ATTENTION
    | _EXPERTS
    | {"head_dim": 8, "block_size": 8, "layer_types": ["linear_attention", "full_attention"]},
}  # fmt: skip
"""The sizes of each family's tiny model, besides those that all have."""


def family(name: str, seed: int = 0) -> PreTrainedModel:
    """Return a random model of a family in evaluation mode."""
    torch.manual_seed(seed)
    config = getattr(transformers, f"{name}TextConfig", None) or getattr(transformers, f"{name}Config")
    kind = getattr(transformers, f"{name}ForCausalLM")
    return kind(config(**_TEXT | CONFIGS[name])).eval()


def has_family(name: str) -> bool:
    """Tell whether this version of transformers has a family."""
    return hasattr(transformers, f"{name}ForCausalLM")
