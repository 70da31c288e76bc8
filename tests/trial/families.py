"""Tiny random models of the architectures that transformers has, as far as this version knows them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from tests.tiny_models import VOCAB, noisy_copy

_COMMON = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0, "initializer_range": 0.2,
}  # fmt: skip
# Sliding windows are shorter than the texts.
_SLIDING = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
_SHARING = {"num_hidden_layers": 4, "num_kv_shared_layers": 2, "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"] * 2, "vocab_size_per_layer_input": VOCAB,
            "hidden_size_per_layer_input": 8}  # fmt: skip
_EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_LATENT = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
           "num_key_value_heads": 4, "n_routed_experts": 4, "n_group": 1, "topk_group": 1,
           "first_k_dense_replace": 1}  # fmt: skip
_MAMBA2 = {"mamba_d_state": 8, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_conv": 4,
           "mamba_expand": 2, "mamba_chunk_size": 8}  # fmt: skip
_STATES = {"state_size": 8, "n_groups": 1, "chunk_size": 8}
_DELTA = {"layer_types": ["linear_attention", "full_attention"], "linear_num_value_heads": 4,
          "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}  # fmt: skip
_CONVOLUTIONS = {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention"] * 2, "conv_L_cache": 3}

_DECODER = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "decoder_attention_heads": 4,
            "decoder_ffn_dim": 48, "max_target_positions": 256, "init_std": 0.3, "scale_embedding": False,
            "forced_eos_token_id": None}  # fmt: skip
_GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
_BERT = {"is_decoder": True, "type_vocab_size": 2}

_COUNTING: Mapping[str, Mapping[str, Any]] = {
    "bart": _DECODER, "mbart": _DECODER, "marian": _DECODER, "pegasus": _DECODER, "blenderbot": _DECODER,
    "blenderbot-small": _DECODER, "mvp": _DECODER, "plbart": _DECODER, "bigbird_pegasus": _DECODER, "trocr": _DECODER,
    "whisper": _DECODER | {"num_mel_bins": 8, "max_source_positions": 10},
    "roformer": _BERT,
}  # fmt: skip
_TYPED: Mapping[str, Mapping[str, Any]] = {
    "gpt2": _GPT, "gpt_bigcode": _GPT, "gptj": _GPT | {"rotary_dim": 4}, "codegen": _GPT | {"rotary_dim": 4},
    "gpt_neo": {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 8},
    "bert": _BERT, "roberta": _BERT, "camembert": _BERT, "data2vec-text": _BERT, "ernie": _BERT, "megatron-bert": _BERT,
    "xlm-roberta": _BERT, "xlm-roberta-xl": _BERT, "roberta-prelayernorm": _BERT,
    "big_bird": _BERT | {"attention_type": "original_full"},
    "electra": _BERT | {"embedding_size": 32},
    "rembert": _BERT | {"input_embedding_size": 32, "output_embedding_size": 32},
    "roc_bert": _BERT | {"enable_pronunciation": False, "enable_shape": False, "pronunciation_vocab_size": 8,
                         "shape_vocab_size": 8},
    "xmod": _BERT | {"languages": ["en"], "default_language": "en", "adapter_reduction_factor": 2},
}  # fmt: skip
_ATTENDING: Mapping[str, Mapping[str, Any]] = {
    "llama": {}, "qwen2": {}, "qwen3": {}, "gemma": {}, "gpt_neox": {}, "phi": {}, "phi3": {}, "olmo2": {},
    "cohere": {}, "granite": {}, "stablelm": {}, "starcoder2": {}, "smollm3": {}, "glm4": {},
    "bloom": {"n_layer": 2, "n_head": 4},
    "biogpt": {}, "ctrl": _GPT | {"dff": 48},
    "mpt": {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 256, "use_cache": True},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "mistral": {"sliding_window": 8},
    "gemma2": {"sliding_window": 8, "query_pre_attn_scalar": 8},
    "gemma3_text": _SLIDING,
    "gemma3n_text": _SHARING | {"laurel_rank": 4, "activation_sparsity_pattern": [0.0] * 4,
                                "intermediate_size": [48] * 4, "altup_num_inputs": 2},
    "gemma4_text": _SHARING | {"global_head_dim": 8},
    "gpt_oss": _SLIDING | _EXPERTS,
    "mixtral": _EXPERTS | {"sliding_window": None},
    "olmoe": _EXPERTS,
    "dots1": _EXPERTS | _LATENT | {"n_shared_experts": 1},
    "deepseek_v3": _EXPERTS | _LATENT,
    "llama4_text": {"num_local_experts": 2, "intermediate_size_mlp": 48, "moe_layers": [1], "attention_chunk_size": 16,
                    "no_rope_layers": [1, 1]},
    "lfm2": _CONVOLUTIONS,
    "lfm2_moe": _CONVOLUTIONS | _EXPERTS | {"num_dense_layers": 1},
}  # fmt: skip
_RECURRENT: Mapping[str, Mapping[str, Any]] = {
    "minimax": {"num_local_experts": 4, "layer_types": ["linear_attention", "full_attention"], "block_size": 8},
    "mamba": {"state_size": 8},
    "mamba2": _STATES | {"num_heads": 4, "head_dim": 16},
    "falcon_mamba": {"state_size": 8},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1,
              "num_experts": 2, "mamba_d_state": 8, "use_mamba_kernels": False},
    "bamba": {"attn_layer_indices": [1]} | _MAMBA2,
    "falcon_h1": _MAMBA2 | {"mamba_d_ssm": 64},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"], "shared_intermediate_size": 48} | _EXPERTS | _MAMBA2,
    "qwen3_next": _DELTA | _EXPERTS | {"shared_expert_intermediate_size": 16},
    "recurrent_gemma": {"num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 8},
    "rwkv": {"context_length": 256, "attention_hidden_size": 32},
}  # fmt: skip
FAMILIES = {**_ATTENDING, **_COUNTING, **_TYPED, **_RECURRENT}
"""From a model type to what its configuration has besides the usual small sizes."""
COUNTING = tuple(name for name in _COUNTING if name in CONFIG_MAPPING)
TYPED = tuple(name for name in (*_TYPED, "roformer") if name in CONFIG_MAPPING)
"""Those whose positions are their cache's columns, and those that read token types."""
RECURRENT = tuple(name for name in _RECURRENT if name in CONFIG_MAPPING)
ATTENDING = tuple(name for name in {**_ATTENDING, **_COUNTING, **_TYPED} if name in CONFIG_MAPPING)
"""Those that this version of transformers has: with a state that may be of no use after a rejection, and without."""


@functools.cache
def family(name: str) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Return a target of one family and a draft that agrees with it often."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        target = AutoModelForCausalLM.from_config(CONFIG_MAPPING[name](**(_COMMON | FAMILIES[name]))).eval()
    draft = noisy_copy(target)
    target.config._name_or_path, draft.config._name_or_path = name, f"{name}-draft"
    target.name_or_path, draft.name_or_path = name, f"{name}-draft"
    return target, draft
