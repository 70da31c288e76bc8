"""Tiny random models that read images or sounds, each with what it is asked about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from tests.architectures import small
from tests.tiny_models import VOCAB, prompt

IMAGE, VIDEO = VOCAB - 1, VOCAB - 2
_TOKENS = {"image_token_id": IMAGE, "vision_start_token_id": 3, "vision_end_token_id": 4, "video_token_id": VIDEO}
_THREE_AXES = {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]}}
_GATES = ("gate", "alpha")  # closed at first

Asked = tuple[PreTrainedModel, dict[str, torch.Tensor]]


def _made(kind: str, task: str = "ForConditionalGeneration", **values: Any) -> PreTrainedModel:
    config = small(getattr(transformers, f"{kind}Config"), values)
    return getattr(transformers, f"{kind}{task}")(config)


def _ids(rows: int, patches: int = 0) -> torch.Tensor:
    """Return prompts with ``patches`` placeholders in the middle."""
    image = torch.full((1, patches), IMAGE)
    texts = [(prompt(3, seed=i) % (VOCAB - 4), image, prompt(4, seed=i + 9) % (VOCAB - 4)) for i in range(rows)]
    return torch.cat([torch.cat(text, dim=1) for text in texts])


def _asked(model: PreTrainedModel, ids: torch.Tensor, types: str = "", **seen: torch.Tensor) -> Asked:
    own = {types: (ids == IMAGE).long()} if types else {}
    return model, {"input_ids": ids, "attention_mask": torch.ones_like(ids), **seen, **own}


def llava(rows: int) -> Asked:
    model = _made("Llava", image_token_index=IMAGE, image_seq_length=4, vision_feature_layer=-1)
    return _asked(model, _ids(rows, 4), pixel_values=torch.randn(rows, 3, 8, 8))


def gemma3(rows: int) -> Asked:
    model = _made("Gemma3", mm_tokens_per_image=4, image_token_index=IMAGE, boi_token_index=3, eoi_token_index=4)
    with torch.no_grad():
        model.model.multi_modal_projector.mm_input_projection_weight.normal_()
    return _asked(model, _ids(rows, 4), "token_type_ids", pixel_values=torch.randn(rows, 3, 8, 8))


def paligemma(rows: int, text: type[transformers.PretrainedConfig] = transformers.GemmaConfig) -> Asked:
    config = small(transformers.PaliGemmaConfig, {"image_token_index": IMAGE})
    config.text_config = small(text, {})
    model, ids = transformers.PaliGemmaForConditionalGeneration(config), _ids(rows, 4)
    prefix = torch.zeros_like(ids)  # whose tokens see each other
    return _asked(model, ids, pixel_values=torch.randn(rows, 3, 8, 8), token_type_ids=prefix)


def paligemma2(rows: int) -> Asked:
    return paligemma(rows, transformers.Gemma2Config)


def qwen2_vl(rows: int) -> Asked:
    return _patches(_made("Qwen2VL", text_config=_THREE_AXES, **_TOKENS), rows)


def qwen2_vl_video(rows: int, frames: int = 4) -> Asked:
    return _video(qwen2_vl(rows)[0], rows, frames)


def qwen2_5_vl_video(rows: int, frames: int = 4) -> Asked:
    """Return a video of eight seconds a frame: its times are higher than the positions of the text after it."""
    vision = {"window_size": 16, "fullatt_block_indexes": [0], "tokens_per_second": 4}
    model, inputs = _video(_made("Qwen2_5_VL", text_config=_THREE_AXES, vision_config=vision, **_TOKENS), rows, frames)
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
    rope = {"rope_type": "default", "mrope_section": [1, 1, 0], "partial_rotary_factor": 0.25}
    text = {"head_dim": 16, "rope_parameters": rope}
    return _patches(_made("Qwen3_5", text_config=text, vision_config={"num_position_embeddings": 16}, **_TOKENS), rows)


def _patches(model: PreTrainedModel, rows: int) -> Asked:
    seen = {"pixel_values": torch.randn(16 * rows, 96), "image_grid_thw": torch.tensor([[1, 4, 4]] * rows)}
    return _asked(model, _ids(rows, 4), "mm_token_type_ids", **seen)


def lfm2_vl(rows: int) -> Asked:
    text = {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2, "conv_L_cache": 3}
    vision = {"num_patches": 16, "vision_use_head": False}
    sizes = {"projector_hidden_size": 32, "downsample_factor": 2}
    return _asked(
        _made("Lfm2Vl", text_config=text, vision_config=vision, image_token_id=IMAGE, **sizes), _ids(rows, 4),
        pixel_values=torch.randn(rows, 16, 48), spatial_shapes=torch.tensor([[4, 4]] * rows),
        pixel_attention_mask=torch.ones(rows, 16, dtype=torch.long),
    )  # fmt: skip


def qwen2_audio(rows: int) -> Asked:
    model = _made("Qwen2Audio", audio_token_index=IMAGE, audio_config={"max_source_positions": 16})
    seen = {"input_features": torch.randn(rows, 8, 32), "feature_attention_mask": torch.ones(rows, 32).long()}
    return _asked(model, _ids(rows, 8), **seen)


def mllama(rows: int) -> Asked:
    vision = {"max_num_tiles": 1, "supported_aspect_ratios": [[1, 1]], "intermediate_layers_indices": [0],
              "vision_output_dim": 64}  # fmt: skip
    text = {"cross_attention_layers": [1], "num_hidden_layers": 3, "num_key_value_heads": 4}
    model = _opened(_made("Mllama", vision_config=vision, text_config=text, image_token_index=IMAGE))
    ids = _ids(rows, 1)
    return _asked(
        model, ids, pixel_values=torch.randn(rows, 1, 1, 3, 8, 8),
        aspect_ratio_ids=torch.ones(rows, 1, dtype=torch.long), aspect_ratio_mask=torch.ones(rows, 1, 1).long(),
        cross_attention_mask=torch.ones(*ids.shape, 1, 1, dtype=torch.long),
    )  # fmt: skip


def idefics(rows: int) -> Asked:
    model, ids = _opened(_made("Idefics", "ForVisionText2Text", alpha_initializer="ones")), _ids(rows)
    mask = torch.ones(*ids.shape, 1, dtype=torch.long)
    return _asked(model, ids, pixel_values=torch.randn(rows, 1, 3, 8, 8), image_attention_mask=mask)


def kosmos2(rows: int) -> Asked:
    text = {"embed_dim": 32, "layers": 2, "attention_heads": 4, "dropout": 0.0, "pad_token_id": 1}
    model, ids = _made("Kosmos2", text_config=text, latent_query_num=3), _ids(rows)
    with torch.no_grad():
        model.get_output_embeddings().weight[1] = 0  # it counts positions by padding, which is no part of a text
    places = (torch.arange(ids.shape[1]) % 4 > 0).expand_as(ids) & (torch.arange(ids.shape[1]) < 4)
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
    model, ids = _made("Udop", dropout_rate=0.0, decoder_start_token_id=0, initializer_factor=2.0), _ids(rows)
    boxes = torch.tensor([0.1, 0.2, 0.5, 0.6]).expand(*ids.shape, 4)
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
