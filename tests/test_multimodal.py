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
    MllamaConfig,
    MllamaForConditionalGeneration,
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


def mllama():
    vision = {
        "hidden_size": 32, "attention_heads": 4, "num_hidden_layers": 1, "num_global_layers": 1,
        "intermediate_size": 48,
        "image_size": 8, "patch_size": 4, "max_num_tiles": 1, "supported_aspect_ratios": [[1, 1]],
        "intermediate_layers_indices": [0], "vision_output_dim": 64,
    }  # fmt: skip
    text = {k: v for k, v in _COMMON.items() if k != "head_dim"} | {
        "cross_attention_layers": [1],
        "num_hidden_layers": 3,
    }
    model = MllamaForConditionalGeneration(
        MllamaConfig(vision_config=vision, text_config=text, image_token_index=IMAGE)
    )
    with torch.no_grad():  # gates are closed at first
        for name, weight in model.named_parameters():
            if "gate" in name:
                weight.fill_(1.0)
    seen = {
        "pixel_values": torch.randn(1, 1, 1, 3, 8, 8), "aspect_ratio_ids": torch.ones(1, 1, dtype=torch.long),
        "aspect_ratio_mask": torch.ones(1, 1, 1, dtype=torch.long),
    }  # fmt: skip
    return model, seen, 1


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


@pytest.mark.parametrize("drafter", ["assistant", "look-up"])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("length", [5, 40])
@pytest.mark.filterwarnings("ignore:`hidden_state` is deprecated:FutureWarning")  # transformers 5.14's own call
def test_keys_of_an_image_stay_when_the_text_is_rolled_back(length: int, rows: int, drafter: str):
    """They are fewer than the text's, or more, and every row of a batch keeps its own."""
    torch.manual_seed(0)
    target, seen, _ = mllama()
    target.eval()
    ids = torch.cat([torch.full((rows, 1), IMAGE), prompt(length).repeat(rows, 1) % (VOCAB - 4)], dim=1)
    if rows == 2:
        ids[1] = ids[1].roll(2)
    seen = {name: value.repeat(rows, *[1] * (value.dim() - 1)) for name, value in seen.items()}
    if rows == 2:
        seen["pixel_values"][1] *= -1
    mask = torch.ones(rows, ids.shape[1], 1, 1, dtype=torch.long)
    inputs = seen | {"input_ids": ids, "attention_mask": torch.ones_like(ids), "cross_attention_mask": mask}
    kwargs = GREEDY | inputs | {"output_logits": True, "pad_token_id": 0}
    plain = target.generate(**kwargs)
    draft = tiny("llama")
    with torch.no_grad():
        draft.model.embed_tokens.weight.copy_(target.model.language_model.embed_tokens.weight[:VOCAB])
        draft.lm_head.weight.copy_(target.lm_head.weight)
    drafts = (
        {"assistant_model": draft, "num_assistant_tokens": 4}
        if drafter == "assistant"
        else {"prompt_lookup_num_tokens": 4}
    )
    ours = target.generate(**kwargs, lossy_mode="lossless", **drafts)
    assert_same_rows(ours.sequences, plain)
    assert ours.lossy_stats.drafted > 0
    other = dict(kwargs, pixel_values=seen["pixel_values"] * 3)
    assert (target.generate(**other).logits[0] - plain.logits[0]).abs().max() > 1e-4, "the image matters"


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
