"""Tiny random models that read images or sounds, each with what it is asked about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from tests.tiny_models import _COMMON, VOCAB, prompt

IMAGE, VIDEO = VOCAB - 1, VOCAB - 2
_VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
           "image_size": 8, "patch_size": 4}  # fmt: skip
_TOKENS = {"image_token_id": IMAGE, "vision_start_token_id": 3, "vision_end_token_id": 4, "video_token_id": VIDEO}
_GATES = ("gate", "alpha")  # closed at first

Asked = tuple[PreTrainedModel, dict[str, torch.Tensor]]


def _ids(rows: int, patches: int = 0) -> torch.Tensor:
    """Return prompts with ``patches`` placeholders in the middle."""
    image = torch.full((1, patches), IMAGE)
    texts = [(prompt(3, seed=i) % (VOCAB - 4), image, prompt(4, seed=i + 9) % (VOCAB - 4)) for i in range(rows)]
    return torch.cat([torch.cat(text, dim=1) for text in texts])


def _asked(model: PreTrainedModel, ids: torch.Tensor, types: str = "", **seen: torch.Tensor) -> Asked:
    own = {types: (ids == IMAGE).long()} if types else {}
    return model, {"input_ids": ids, "attention_mask": torch.ones_like(ids), **seen, **own}


def llava(rows: int) -> Asked:
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**_VISION, projection_dim=32),
        text_config=transformers.LlamaConfig(**_COMMON), image_token_index=IMAGE, image_seq_length=4,
        vision_feature_layer=-1,
    )  # fmt: skip
    model = transformers.LlavaForConditionalGeneration(config)
    return _asked(model, _ids(rows, 4), pixel_values=torch.randn(rows, 3, 8, 8))


def gemma3(rows: int) -> Asked:
    config = transformers.Gemma3Config(
        vision_config=transformers.SiglipVisionConfig(**_VISION), mm_tokens_per_image=4, image_token_index=IMAGE,
        boi_token_index=3, eoi_token_index=4, text_config=transformers.Gemma3TextConfig(**_COMMON, sliding_window=8),
    )  # fmt: skip
    model = transformers.Gemma3ForConditionalGeneration(config)
    with torch.no_grad():
        model.model.multi_modal_projector.mm_input_projection_weight.normal_()
    return _asked(model, _ids(rows, 4), "token_type_ids", pixel_values=torch.randn(rows, 3, 8, 8))


def paligemma(rows: int) -> Asked:
    return _paligemma(rows, transformers.GemmaConfig(**_COMMON))


def paligemma2(rows: int) -> Asked:
    return _paligemma(rows, transformers.Gemma2Config(**_COMMON, sliding_window=8, query_pre_attn_scalar=8))


def _paligemma(rows: int, text: transformers.PretrainedConfig) -> Asked:
    config = transformers.PaliGemmaConfig(
        vision_config=transformers.SiglipVisionConfig(**_VISION, projection_dim=32), text_config=text,
        image_token_index=IMAGE, projection_dim=32, hidden_size=32, vocab_size=VOCAB,
    )  # fmt: skip
    ids, images = _ids(rows, 4), torch.randn(rows, 3, 8, 8)
    prefix = torch.zeros_like(ids)  # whose tokens see each other
    model = transformers.PaliGemmaForConditionalGeneration(config)
    return _asked(model, ids, pixel_values=images, token_type_ids=prefix)


def qwen2_vl(rows: int) -> Asked:
    config = transformers.Qwen2VLConfig(
        text_config=_COMMON | {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]}},
        vision_config={"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "mlp_ratio": 2, "patch_size": 4,
                       "spatial_merge_size": 2, "temporal_patch_size": 2},
        **_TOKENS,
    )  # fmt: skip
    return _patches(transformers.Qwen2VLForConditionalGeneration(config), rows, "mm_token_type_ids")


def qwen2_vl_video(rows: int, frames: int = 4) -> Asked:
    return _video(qwen2_vl(rows)[0], rows, frames)


def qwen2_5_vl_video(rows: int, frames: int = 4) -> Asked:
    """Return a video of eight seconds a frame: its times are higher than the positions of the text after it."""
    config = transformers.Qwen2_5_VLConfig(
        text_config=_COMMON | {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]}},
        vision_config={"depth": 1, "hidden_size": 32, "intermediate_size": 48, "num_heads": 4, "patch_size": 4,
                       "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 32, "window_size": 16,
                       "fullatt_block_indexes": [0], "tokens_per_second": 4},
        **_TOKENS,
    )  # fmt: skip
    model, inputs = _video(transformers.Qwen2_5_VLForConditionalGeneration(config), rows, frames)
    return model, inputs | {"second_per_grid_ts": torch.full((rows,), 8.0)}


def _video(model: PreTrainedModel, rows: int, frames: int) -> Asked:
    ids = _ids(rows, frames * 4)
    ids[ids == IMAGE] = VIDEO
    return model, {
        "input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": (ids == VIDEO).long() * 2,
        "pixel_values_videos": torch.randn(rows * frames * 16, 96),
        "video_grid_thw": torch.tensor([[frames, 4, 4]] * rows),
    }  # fmt: skip


def qwen3_5(rows: int) -> Asked:
    linear = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8,
              "linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention"]}  # fmt: skip
    rope = {"rope_type": "default", "mrope_section": [1, 1, 0], "partial_rotary_factor": 0.25}
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 48, "num_heads": 4, "patch_size": 4,
              "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 32,
              "num_position_embeddings": 16}  # fmt: skip
    text = _COMMON | linear | {"head_dim": 16, "rope_parameters": rope}
    config = transformers.Qwen3_5Config(text_config=text, vision_config=vision, **_TOKENS)
    return _patches(transformers.Qwen3_5ForConditionalGeneration(config), rows, "mm_token_type_ids")


def _patches(model: PreTrainedModel, rows: int, types: str) -> Asked:
    grid = torch.tensor([[1, 4, 4]] * rows)
    return _asked(model, _ids(rows, 4), types, pixel_values=torch.randn(16 * rows, 96), image_grid_thw=grid)


def lfm2_vl(rows: int) -> Asked:
    config = transformers.Lfm2VlConfig(
        vision_config={"model_type": "siglip2_vision_model", "hidden_size": 32, "intermediate_size": 48,
                       "num_hidden_layers": 1, "num_attention_heads": 4, "patch_size": 4, "num_patches": 16,
                       "vision_use_head": False},
        text_config={"model_type": "lfm2", **_COMMON, "layer_types": ["conv", "full_attention"], "conv_L_cache": 3},
        image_token_id=IMAGE, projector_hidden_size=32, downsample_factor=2,
    )  # fmt: skip
    return _asked(
        transformers.Lfm2VlForConditionalGeneration(config), _ids(rows, 4), pixel_values=torch.randn(rows, 16, 48),
        spatial_shapes=torch.tensor([[4, 4]] * rows), pixel_attention_mask=torch.ones(rows, 16, dtype=torch.long),
    )  # fmt: skip


def qwen2_audio(rows: int) -> Asked:
    config = transformers.Qwen2AudioConfig(
        audio_config={"model_type": "qwen2_audio_encoder", "d_model": 32, "encoder_attention_heads": 4,
                      "encoder_ffn_dim": 48, "encoder_layers": 1, "num_mel_bins": 8, "max_source_positions": 16},
        text_config=_COMMON | {"model_type": "qwen2"}, audio_token_index=IMAGE,
    )  # fmt: skip
    return _asked(
        transformers.Qwen2AudioForConditionalGeneration(config), _ids(rows, 8),
        input_features=torch.randn(rows, 8, 32), feature_attention_mask=torch.ones(rows, 32, dtype=torch.long),
    )  # fmt: skip


def mllama(rows: int) -> Asked:
    vision = {"hidden_size": 32, "attention_heads": 4, "num_hidden_layers": 1, "num_global_layers": 1,
              "intermediate_size": 48, "image_size": 8, "patch_size": 4, "max_num_tiles": 1,
              "supported_aspect_ratios": [[1, 1]], "intermediate_layers_indices": [0],
              "vision_output_dim": 64}  # fmt: skip
    text = {k: v for k, v in _COMMON.items() if k != "head_dim"}
    text |= {"cross_attention_layers": [1], "num_hidden_layers": 3}
    config = transformers.MllamaConfig(vision_config=vision, text_config=text, image_token_index=IMAGE)
    model, ids = _opened(transformers.MllamaForConditionalGeneration(config)), _ids(rows, 1)
    return _asked(
        model, ids, pixel_values=torch.randn(rows, 1, 1, 3, 8, 8),
        aspect_ratio_ids=torch.ones(rows, 1, dtype=torch.long), aspect_ratio_mask=torch.ones(rows, 1, 1).long(),
        cross_attention_mask=torch.ones(*ids.shape, 1, 1, dtype=torch.long),
    )  # fmt: skip


def idefics(rows: int) -> Asked:
    vision = {"embed_dim": 32, "image_size": 8, "intermediate_size": 48, "patch_size": 4, "num_hidden_layers": 1,
              "num_attention_heads": 4}  # fmt: skip
    text = {k: v for k, v in _COMMON.items() if k not in ("head_dim", "num_key_value_heads")}
    config = transformers.IdeficsConfig(**text, alpha_initializer="ones", vision_config=vision)
    model, ids = _opened(transformers.IdeficsForVisionText2Text(config)), _ids(rows)
    mask = torch.ones(*ids.shape, 1, dtype=torch.long)
    return _asked(model, ids, pixel_values=torch.randn(rows, 1, 3, 8, 8), image_attention_mask=mask)


def kosmos2(rows: int) -> Asked:
    text = {"vocab_size": VOCAB, "embed_dim": 32, "layers": 2, "ffn_dim": 48, "attention_heads": 4, "dropout": 0.0,
            "attention_dropout": 0.0, "max_position_embeddings": 256, "init_std": 0.2, "pad_token_id": 1}  # fmt: skip
    config = transformers.Kosmos2Config(text_config=text, vision_config=_VISION, latent_query_num=3)
    ids = _ids(rows)
    places = (torch.arange(ids.shape[1]) % 4 > 0).expand_as(ids) & (torch.arange(ids.shape[1]) < 4)
    model = transformers.Kosmos2ForConditionalGeneration(config)
    return _asked(model, ids, pixel_values=torch.randn(rows, 3, 8, 8), image_embeds_position_mask=places)


def kyutai(rows: int) -> Asked:
    codec = {
        "model_type": "mimi", "num_quantizers": 2, "audio_channels": 1, "hidden_size": 16, "num_filters": 8,
        "num_residual_layers": 1, "upsampling_ratios": [2, 2], "codebook_size": 16, "codebook_dim": 16,
        "vector_quantization_hidden_dimension": 16, "upsample_groups": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "sliding_window": 8, "intermediate_size": 32,
        "use_cache": True, "kernel_size": 3, "last_kernel_size": 3, "residual_kernel_size": 3, "frame_rate": 1500,
        "sampling_rate": 12000, "num_semantic_quantizers": 1, "head_dim": 8,
    }  # fmt: skip
    config = transformers.KyutaiSpeechToTextConfig(
        codebook_vocab_size=17, vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=128, sliding_window=64, ffn_dim=64, num_codebooks=2, audio_bos_token_id=16,
        audio_pad_token_id=VOCAB + 2, head_dim=8, bos_token_id=1, pad_token_id=0, initializer_range=0.2,
        codec_config=codec,
    )  # fmt: skip
    model = transformers.KyutaiSpeechToTextForConditionalGeneration(config)
    for name, code in model.codec_model.named_buffers():
        if name.endswith("embed_sum"):  # zeros at first, so that all sounds would be one
            code.normal_()
    return model, {"input_values": torch.randn(rows, 1, 480)}


def udop(rows: int) -> Asked:
    config = transformers.UdopConfig(
        vocab_size=VOCAB, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0.0, image_size=8,
        patch_size=4, decoder_start_token_id=0, initializer_factor=2.0,
    )  # fmt: skip
    ids = _ids(rows)
    boxes = torch.tensor([0.1, 0.2, 0.5, 0.6]).expand(*ids.shape, 4)
    model = transformers.UdopForConditionalGeneration(config)
    return _asked(model, ids, bbox=boxes, pixel_values=torch.randn(rows, 3, 8, 8))


def _opened(model: PreTrainedModel) -> PreTrainedModel:
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if any(gate in name for gate in _GATES) and "gate_proj" not in name:
                weight.fill_(1.0)
    return model


MODELS: dict[str, Callable[[int], Asked]] = {
    kind.__name__: kind
    for kind in (
        llava, gemma3, paligemma, paligemma2, qwen2_vl, qwen2_vl_video, qwen2_5_vl_video, qwen3_5, lfm2_vl, qwen2_audio,
        mllama, idefics, kosmos2, kyutai, udop,
    )
}  # fmt: skip
"""From a model's name to what makes it, with the inputs of so many rows."""

ROW_BY_ROW = ("qwen3_5", "lfm2_vl")
"""Those whose rows can't be decoded together, though they have no encoder."""

_SINGLE = ("kosmos2",)  # its masks are of single precision


def asked(name: str, rows: int = 1) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Return a model in double precision, where it works in that, and the inputs of a call."""
    torch.manual_seed(0)
    model, inputs = MODELS[name](rows)
    dtype = torch.float32 if name in _SINGLE else torch.float64
    model = model.to(dtype).eval()
    for part in {model, getattr(model, "text_model", model)}:
        part.generation_config.pad_token_id = 0
    return model, {key: x.to(dtype) if x.is_floating_point() else x for key, x in inputs.items()}
