"""Tiny random models of every architecture that transformers knows, by shrinking its own default sizes."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

from tests.tiny_models import VOCAB, noisy_copy

ARCHITECTURES = (
    *dict.fromkeys((*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES)),
    "dory last_loop",
)
"""Model types, and variants of some after a blank."""
MOST_PARAMETERS = 10_000_000

_TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "decoder_start_token_id": 1}
_SIZES = {
    "vocab_size": VOCAB, "text_vocab_size": VOCAB, "audio_vocab_size": VOCAB, "decoder_vocab_size": VOCAB,
    "vocab_size_per_layer_input": VOCAB,
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "hidden_dim", "embedding_dim", "embed_dim",
                     "embedding_size", "input_embedding_size", "output_embedding_size", "attention_hidden_size",
                     "decoder_hidden_size", "lru_width", "word_embed_proj_dim", "cross_attention_hidden_size",
                     "d_embed", "emb_dim", "hidden_size_global"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim", "dff", "d_inner",
                     "shared_intermediate_size", "intermediate_size_mlp", "ffn_hidden_size", "n_inner"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers",
                     "num_decoder_layers", "num_encoder_layers", "num_block"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads",
                     "decoder_attention_heads", "linear_num_value_heads", "linear_num_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "linear_num_key_heads"), 2),
    **dict.fromkeys(("head_dim", "linear_key_head_dim", "linear_value_head_dim", "linear_head_dim",
                     "v_head_dim", "qk_rope_head_dim", "qk_nope_head_dim", "global_head_dim", "d_kv",
                     "state_size", "mamba_d_state", "ssm_state_size", "index_head_dim"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions",
                     "max_encoder_position_embeddings", "max_decoder_position_embeddings", "context_length"), 256),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size",
                     "moe_shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("n_group", "topk_group", "n_groups", "mamba_n_groups", "first_k_dense_replace",
                     "n_shared_experts"), 1),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "o_lora_rank"), 16),
    "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_chunk_size": 8, "chunk_size": 8, "mamba_num_heads": 8,
    "mamba_head_dim": 8, "sliding_window": 8, "attention_window_size": 8, "attention_chunk_size": 16,
    "window_size": 8, "use_mamba_kernels": False, "hidden_size_per_layer_input": 8, "initializer_range": 0.2,
    "init_std": 0.3, "initializer_factor": 6.0, "tie_word_embeddings": False, "index_n_heads": 16,
    "index_topk": 4, "index_block_size": 4, "index_topk_blocks": 2,
    "forced_eos_token_id": None, "num_codebooks": 2,
    # What reads images or sounds.
    "image_size": 8, "patch_size": 4, "depth": 1, "spatial_merge_size": 2, "temporal_patch_size": 2,
    "out_hidden_size": 32, "projection_dim": 32, "attention_heads": 4, "num_global_layers": 1, "num_mel_bins": 8,
}  # fmt: skip
"""Small sizes, by the names that configurations have for them."""

_INDEXED = {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 4,
            "indexer_compress_ratio": 2, "layer_types": ["linear_attention", "indexed_attention"],
            "num_hidden_layers": 2}  # fmt: skip
_SHARING = {"num_hidden_layers": 4, "num_kv_shared_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"] * 2}  # fmt: skip
_CONVOLUTIONS = {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention"] * 2, "conv_L_cache": 3}
_EVERY_OTHER = {"attn_layer_period": 2, "attn_layer_offset": 1}
_ZAMBA = {"num_key_value_heads": 4, "attention_hidden_size": 64}
_MORE: Mapping[str, Mapping[str, Any]] = {
    "bailing_hybrid": {"n_group": 1, "topk_group": 1, "num_experts": 8},
    "bamba": {"attn_layer_indices": [1]},
    "blt": {"encoder_hash_byte_group_vocab": 64, "num_hidden_layers": 2},
    "codegen": {"rotary_dim": 4},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}},
    "deepseek_v2": {"num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "deepseek_v4": {"compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 4}},
    "dory": {
        "num_hidden_layers": 3, "n_input_layers": 1, "n_recurrent_layers": 1, "n_output_layers": 1,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "dory last_loop": {"recurrent_kv_cache_mode": "last_loop"},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "dots3_note": {"text_config": {"per_layer_config": None}},
    "dots3_note_text": {"per_layer_config": None},
    "falcon_h1": {"mamba_d_ssm": 64},
    "fsmt": {"langs": ["en", "de"], "src_vocab_size": VOCAB, "tgt_vocab_size": VOCAB, "num_beams": 1},
    "gemma3n_text": _SHARING | {"laurel_rank": 4, "activation_sparsity_pattern": [0.0] * 4,
                                "intermediate_size": [48] * 4, "altup_num_inputs": 2},
    "gemma4_text": _SHARING,
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]]},
    "gptj": {"rotary_dim": 4},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "jamba": _EVERY_OTHER | {"expert_layer_period": 2, "expert_layer_offset": 1},
    "kimi_linear": {
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "num_local_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 24, "kv_lora_rank": 8, "qk_rope_head_dim": 4,
        "v_head_dim": 8, "qk_nope_head_dim": 4, "linear_head_dim": 8, "linear_num_heads": 4, "intermediate_size": 48,
        "layer_types": ["linear_attention", "full_attention"], "mlp_layer_types": ["dense", "sparse"],
    },
    "led": {"attention_window": 8},
    "lfm2": _CONVOLUTIONS,
    "lfm2_moe": _CONVOLUTIONS | {"num_dense_layers": 1},
    "mamba2": {"head_dim": 16},
    "minimax": {"layer_types": ["linear_attention", "full_attention"], "block_size": 8},
    "minimax_m3_vl_text": {"index_n_heads": 2, "layer_types": ["full_attention", "minimax_m3_sparse"]},
    "ministral": {"head_dim": 8},
    "mpt": {"use_cache": True},
    "nemotron": {"head_dim": 8, "num_key_value_heads": 2},
    "qwen4_exp": {"text_config": _INDEXED},
    "qwen4_exp_text": _INDEXED,
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {"axial_pos_embds": False, "is_decoder": True, "num_buckets": 2},
    "roc_bert": {"enable_pronunciation": False, "enable_shape": False, "pronunciation_vocab_size": 8,
                 "shape_vocab_size": 8},
    "xmod": {"languages": ["en"], "default_language": "en", "adapter_reduction_factor": 2},
    "xlm-roberta-xl": {"type_vocab_size": 2},
    "zamba": _ZAMBA | _EVERY_OTHER | {"num_hidden_layers": 4},
    "zamba2": _ZAMBA | {"n_mamba_heads": 8, "layers_block_type": ["mamba", "hybrid"]},
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip
"""What an architecture needs besides, where small sizes don't fit together or would leave a kind of layer out."""

COUNTING = (
    "bart", "mbart", "marian", "pegasus", "blenderbot", "blenderbot-small", "mvp", "plbart", "bigbird_pegasus",
    "trocr", "whisper", "roformer",
)  # fmt: skip
"""Decoders whose positions are their cache's columns."""
ENCODERS = (
    "bert", "roberta", "camembert", "data2vec-text", "ernie", "megatron-bert", "xlm-roberta", "xlm-roberta-xl",
    "roberta-prelayernorm", "big_bird", "electra", "rembert", "roc_bert", "xmod", "roformer",
)  # fmt: skip
"""Those that decode only where their configuration says so."""
TYPED = ("gpt2", "gpt_bigcode", "gptj", "codegen", "gpt_neo", *ENCODERS)
"""Those that read token types."""
RECURRENT = (
    "minimax", "mamba", "mamba2", "falcon_mamba", "jamba", "bamba", "falcon_h1", "granitemoehybrid", "qwen3_next",
    "recurrent_gemma", "rwkv",
)  # fmt: skip
"""Those with a state that may be of no use after a rejection."""
STATES = (
    *RECURRENT, "zamba", "zamba2", "qwen3_5_text", "nemotron_h", "olmo_hybrid", "kimi_linear", "lfm2", "lfm2_moe",
    "zaya", "xlstm",
)  # fmt: skip
"""Those with layers that keep a state instead of, or beside, keys and values."""
ATTENDING = (
    "llama", "qwen2", "qwen3", "gemma", "gpt_neox", "phi", "phi3", "olmo2", "cohere", "granite", "stablelm",
    "starcoder2", "smollm3", "glm4", "bloom", "biogpt", "ctrl", "mpt", "opt", "mistral", "gemma2", "gemma3_text",
    "gemma3n_text", "gemma4_text", "gpt_oss", "mixtral", "olmoe", "dots1", "deepseek_v3", "llama4_text", "lfm2",
    "lfm2_moe", *dict.fromkeys((*COUNTING, *TYPED)),
)  # fmt: skip
"""Those without one."""


def made(name: str, seed: int = 0, auto: Any = None, **values: Any) -> PreTrainedModel:
    """Return a random model in double precision, of another class or with other ``values`` where they are given."""
    torch.manual_seed(seed)
    variant, name = name, name.split()[0]
    decodes = auto is None and name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    auto = auto or (AutoModelForCausalLM if decodes else AutoModelForSeq2SeqLM)
    more = {**_MORE.get(name, {}), **_MORE.get(variant, {}), **values}
    config = small(CONFIG_MAPPING[name], more)
    if decodes and hasattr(config, "is_decoder"):
        config.is_decoder = True
    with torch.device("meta"):
        size = auto.from_config(config).num_parameters()
    if size > MOST_PARAMETERS:
        raise ValueError(f"has {size:,} parameters")
    model = auto.from_config(config, dtype=torch.float64).double().eval()
    for part in (config, *(getattr(config, name) for name in config.sub_configs)):
        if part is not None:
            part._experts_implementation = "eager"  # the others have no kernels for double precision
    for name, token in _TOKENS.items():
        setattr(model.generation_config, name, token)
    return model


@functools.cache
def family(name: str) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Return a target in single precision, and a draft that agrees with it often."""
    with torch.random.fork_rng():
        target = made(name).float()
    draft = noisy_copy(target)
    target.name_or_path, draft.name_or_path = name, f"{name}-draft"
    return target, draft


def small(kind: type[PretrainedConfig], more: Mapping[str, Any]) -> PretrainedConfig:
    """Return a configuration with small sizes where it has names for them, and those of its parts too."""
    full = kind()
    given = {name: _SIZES[name] for name in vars(full) if name in _SIZES and vars(full)[name] is not None}
    given |= {name: token for name, token in _TOKENS.items() if hasattr(full, name)}
    if "kv_lora_rank" in given:
        given["num_key_value_heads"] = given["num_attention_heads"]  # heads share what is compressed, not keys
    kinds = list(dict.fromkeys(getattr(full, "layer_types", None) or ()))
    settable = not isinstance(getattr(kind, "layer_types", None), property)
    if settable and 1 < len(kinds) < 5 and "num_hidden_layers" not in more:  # the first two are often of one kind
        given |= {"layer_types": kinds, "num_hidden_layers": len(kinds)}
    for name in getattr(kind, "sub_configs", {}):
        part = getattr(full, name, None)
        if isinstance(part, PretrainedConfig):
            given[name] = small(type(part), more.get(name, {})).to_dict()
    return kind(**given | {name: value for name, value in more.items() if name not in kind.sub_configs})
