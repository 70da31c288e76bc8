"""Rows with images or videos that end at different times: their positions, token types and keys go with them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    GemmaConfig,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
    PreTrainedModel,
    SiglipVisionConfig,
)

from tests.parity import assert_same_rows
from tests.test_multimodal import _VISION, IMAGE, mllama, qwen2_vl
from tests.tiny_models import _COMMON, VOCAB, WINDOWS_ROLL_BACK, noisy_copy, padded, prompt

VIDEO = VOCAB - 2
GREEDY = {"do_sample": False, "max_new_tokens": 20, "pad_token_id": 0, "eos_token_id": [*range(5, 60, 4)],
          "suppress_tokens": [IMAGE, VIDEO]}  # fmt: skip
TREE = {"tree": {"depth": 3, "top_k": 2, "nodes": 6}}
DRAFTERS = {
    "model": lambda draft: {"assistant_model": draft, "num_assistant_tokens": 4},
    "default length": lambda draft: {"assistant_model": draft},
    "look-up": lambda draft: {"prompt_lookup_num_tokens": 3},
}


def exact(made: tuple[PreTrainedModel, dict[str, Any], int], rows: int) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Return a target in double precision, and what each row's image is."""
    target, seen, _ = made
    return target.eval().double(), {
        name: torch.cat([torch.randn_like(value) if value.is_floating_point() else value for _ in range(rows)])
        for name, value in seen.items()
    }


def words_around(rows: int, placeholder: int, count: int) -> dict[str, torch.Tensor]:
    row = [
        [prompt(3, seed=i) % 60, torch.full((1, count), placeholder), prompt(4, seed=i + 5) % 60] for i in range(rows)
    ]
    ids = torch.cat([torch.cat(parts, dim=1) for parts in row])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def in_double(inputs: dict[str, Any]) -> dict[str, Any]:
    return {name: value.double() if value.is_floating_point() else value for name, value in inputs.items()}


def assert_right(target: PreTrainedModel, inputs: dict[str, Any], **lossy: Any) -> None:
    kwargs = GREEDY | in_double(inputs)
    plain = target.generate(**copy.deepcopy(kwargs), output_logits=True, return_dict_in_generate=True)
    assert_same_rows(target.generate(**kwargs, lossy_mode="lossless", **lossy), plain, tie=1e-6)


def paligemma(text: type[GemmaConfig] | type[Gemma2Config], **more: Any) -> PreTrainedModel:
    config = PaliGemmaConfig(
        vision_config=SiglipVisionConfig(**_VISION, projection_dim=32), text_config=text(**_COMMON, **more),
        image_token_index=IMAGE, projection_dim=32, hidden_size=32, vocab_size=VOCAB,
    )  # fmt: skip
    return PaliGemmaForConditionalGeneration(config)


PALIGEMMAS = {
    "1": lambda: paligemma(GemmaConfig),
    "2": lambda: paligemma(Gemma2Config, sliding_window=8, query_pre_attn_scalar=8),
}


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("version", PALIGEMMAS)
def test_a_bidirectional_prefix_ends_with_the_prompt(version: str, drafter: str):
    torch.manual_seed(0)
    model = PALIGEMMAS[version]()
    if version == "2" and not WINDOWS_ROLL_BACK:
        pytest.skip("sliding windows can't be rolled back")
    for rows in (1, 3):
        target, seen = exact((model, {"pixel_values": torch.randn(1, 3, 8, 8)}, 4), rows)
        text = words_around(rows, IMAGE, 4)
        inputs = seen | text | {"token_type_ids": torch.zeros_like(text["input_ids"])}
        assert_right(target, inputs, **DRAFTERS[drafter](noisy_copy(target, 0.01)))


def videos(rows: int, frames: int = 4) -> tuple[PreTrainedModel, dict[str, Any]]:
    torch.manual_seed(0)
    target = qwen2_vl()[0].eval().double()
    text = words_around(rows, VIDEO, frames * 4)
    return target, text | {
        "pixel_values_videos": torch.randn(rows * frames * 16, 3 * 2 * 4 * 4),
        "video_grid_thw": torch.tensor([[frames, 4, 4]] * rows),
        "mm_token_type_ids": (text["input_ids"] == VIDEO).long() * 2,
    }


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("stretched", [1, 5])
def test_positions_of_videos_go_beyond_the_text_s_length(stretched: int, drafter: str):
    for rows in (1, 3):
        target, inputs = videos(rows)
        draft = noisy_copy(target, 0.01)
        if stretched > 1:
            positions = torch.arange(inputs["input_ids"].shape[1]) * stretched
            inputs["position_ids"] = positions.expand(4, rows, -1)
        assert_right(target, inputs, **DRAFTERS[drafter](draft))


@pytest.mark.parametrize("seen", ["images", "text", "padded text"])
def test_a_model_that_remembers_positions_drafts_for_itself(seen: str):
    torch.manual_seed(0)
    target, images = exact(qwen2_vl(), 3)
    text = words_around(3, IMAGE, 4)
    inputs = {
        "images": images | text | {"mm_token_type_ids": (text["input_ids"] == IMAGE).long()},
        "text": {"input_ids": text["input_ids"] % 60, "attention_mask": text["attention_mask"]},
        "padded text": padded(),
    }[seen]
    for drafter in ("model", "default length"):
        assert_right(target, inputs, **DRAFTERS[drafter](target))


@pytest.mark.parametrize(
    ("sees", "drafter"), [(False, "tree"), *((sees, x) for sees in (False, True) for x in DRAFTERS)]
)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.filterwarnings("ignore:`hidden_state` is deprecated:FutureWarning")  # transformers 5.14's own call
def test_layers_that_attend_to_no_image_are_empty_in_static_caches(sees: bool, rows: int, drafter: str):
    torch.manual_seed(0)
    target, seen = exact(mllama(), rows)
    inputs: dict[str, Any] = {"input_ids": torch.cat([prompt(7, seed=i) % 60 for i in range(rows)])}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if sees:
        inputs["input_ids"][:, 0] = IMAGE
        inputs |= seen | {"cross_attention_mask": torch.ones(rows, 7, 1, 1, dtype=torch.long)}
    draft = noisy_copy(target, 0.01)
    drafting = DRAFTERS["model"](draft) | {"lossy_config": TREE} if drafter == "tree" else DRAFTERS[drafter](draft)
    assert_right(target, inputs, cache_implementation="static", **drafting)
