"""Targets that see images, with drafts that do not."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    CLIPVisionConfig,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    SiglipVisionConfig,
)

from tests.parity import assert_same_rows, assert_same_text
from tests.tiny_models import _COMMON, VOCAB, noisy_copy, prompt, tiny

IMAGE = VOCAB - 1
GREEDY = {"do_sample": False, "max_new_tokens": 24, "eos_token_id": None, "return_dict_in_generate": True}
_VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
           "image_size": 8, "patch_size": 4}  # fmt: skip


def llava():
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**_VISION, projection_dim=32), text_config=LlamaConfig(**_COMMON),
        image_token_index=IMAGE, image_seq_length=4, vision_feature_layer=-1,
    )  # fmt: skip
    return LlavaForConditionalGeneration(config), {"pixel_values": torch.randn(1, 3, 8, 8)}, 4


def gemma3():
    config = Gemma3Config(
        vision_config=SiglipVisionConfig(**_VISION), mm_tokens_per_image=4, image_token_index=IMAGE, boi_token_index=3,
        eoi_token_index=4, text_config=Gemma3TextConfig(**_COMMON, sliding_window=8),
    )  # fmt: skip
    model = Gemma3ForConditionalGeneration(config)
    with torch.no_grad():
        model.model.multi_modal_projector.mm_input_projection_weight.normal_()
    return model, {"pixel_values": torch.randn(1, 3, 8, 8)}, 4


def qwen2_vl():
    config = Qwen2VLConfig(
        text_config=_COMMON | {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]}},
        vision_config={"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "mlp_ratio": 2, "patch_size": 4,
                       "spatial_merge_size": 2, "temporal_patch_size": 2},
        image_token_id=IMAGE, vision_start_token_id=3, vision_end_token_id=4, video_token_id=VOCAB - 2,
    )  # fmt: skip
    inputs = {"pixel_values": torch.randn(16, 3 * 2 * 4 * 4), "image_grid_thw": torch.tensor([[1, 4, 4]])}
    return Qwen2VLForConditionalGeneration(config), inputs, 4


MODELS = {"llava": llava, "gemma3": gemma3, "qwen2_vl": qwen2_vl}


def made(name: str):
    """Return a target, what it is asked about an image, and a draft that has its language model."""
    torch.manual_seed(0)
    target, seen, patches = MODELS[name]()
    target.eval()
    target.generation_config.pad_token_id = 0
    ids = torch.cat([prompt(3), torch.full((1, patches), IMAGE), prompt(4, seed=1) % (VOCAB - 4)], dim=1)
    inputs = seen | {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if name != "llava":
        inputs["token_type_ids" if name == "gemma3" else "mm_token_type_ids"] = (ids == IMAGE).long()
    return target, inputs


def text_only(target, noise: float = 0.01):
    draft = tiny("gemma3" if "Gemma" in type(target).__name__ else "llama")
    own = draft.state_dict()
    parts = noisy_copy(target, noise).state_dict()
    for name, weight in parts.items():
        short = name.replace("model.language_model.", "model.")
        if short in own and own[short].shape == weight.shape:
            own[short] = weight
    draft.load_state_dict(own)
    return draft


@pytest.mark.parametrize("name", MODELS)
def test_lossless_parity(name: str):
    target, inputs = made(name)
    plain = target.generate(**inputs, **GREEDY, output_logits=True)
    draft = text_only(target)
    ours = target.generate(**inputs, **GREEDY, assistant_model=draft, lossy_mode="lossless")
    assert_same_text(ours.sequences, plain)
    assert ours.lossy_stats.drafted > 0
    other = dict(inputs, pixel_values=torch.randn_like(inputs["pixel_values"]) * 3)
    without = target.generate(**other, **GREEDY, output_logits=True)
    assert (without.logits[0] - plain.logits[0]).abs().max() > 1e-4, "the image matters"


@pytest.mark.parametrize("mode", ["topk", "dropmatch", "ears"])
def test_lossy_rules(mode: str):
    target, inputs = made("llava")
    kwargs = GREEDY | inputs | {"do_sample": True, "assistant_model": text_only(target), "lossy_mode": mode}
    assert len(target.generate(**kwargs, lossy_config={"seed": 0}).lossy_stats.trace) == 24


def test_a_batch_of_images():
    target, inputs = made("llava")
    inputs = {name: value.repeat(2, *[1] * (value.dim() - 1)) for name, value in inputs.items()}
    inputs["pixel_values"][1] = inputs["pixel_values"][1].flip(-1)
    plain = target.generate(**inputs, **GREEDY, output_logits=True)
    ours = target.generate(**inputs, **GREEDY, assistant_model=text_only(target), lossy_mode="lossless")
    assert_same_rows(ours.sequences, plain)
