"""Tiny models that read more than one text: images, sounds, a source to translate, or adapters for rows."""

from __future__ import annotations

import copy
import functools
import importlib.util
import warnings
from collections.abc import Mapping
from random import Random
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests import encoder_decoders
from tests.architectures import family
from tests.multimodal_models import MODELS, asked
from tests.tiny_models import LENGTHS, noisy_copy, padded

SEEING = tuple(MODELS)
ENCODING = tuple(encoder_decoders.ARCHITECTURES)
ADAPTERS = ("adapters",) if importlib.util.find_spec("peft") else ()
READERS = (*SEEING, *ENCODING, *ADAPTERS)
_ALIGNED = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")
_SEVERAL = (
    "llava",
    "gemma3",
    "paligemma",
    "paligemma2",
    "qwen2_vl",
    "qwen2_vl_video",
    "qwen3_5",
    "lfm2_vl",
    "qwen2_audio",
)
"""Those whose text says where each of several images is."""


@functools.cache
def reader(name: str) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Return a target and a draft that agrees with it often, and reads the same."""
    if name in ADAPTERS:
        return _adapted()
    with torch.random.fork_rng():
        target = asked(name)[0] if name in SEEING else encoder_decoders.made(name)
    draft = noisy_copy(target, 0.01)
    target.name_or_path, draft.name_or_path = name, f"{name}-draft"
    return target, draft


@functools.cache
def decoder_of_whisper() -> PreTrainedModel:
    """Return a draft that shares the target's encoder, as Distil-Whisper's does."""
    return encoder_decoders.decoder_of(reader("whisper")[1], 0.0)


def inputs_of(r: Random, name: str, rows: int) -> dict[str, Any]:
    """Draw what a call of so many rows reads."""
    if name in SEEING:
        with torch.random.fork_rng():
            inputs = asked(name, rows)[1]
        return _twice(inputs, rows) if name in _SEVERAL and r.random() < 0.3 else inputs
    if name == "whisper":
        return {"input_features": torch.randn(rows, 8, 20, generator=torch.Generator().manual_seed(r.randrange(9)))}
    names = {"adapter_names": [r.choice(["one", "two", "__base__"])]} if name in ADAPTERS and rows == 1 else {}
    return padded(LENGTHS[:rows]) | names


def _twice(inputs: Mapping[str, Tensor], rows: int) -> dict[str, Tensor]:
    """Let each row read its text twice, with another image the second time."""
    several = {name: torch.cat([x, x], dim=1) for name, x in inputs.items() if name in _ALIGNED}
    for name, x in inputs.items():
        if name not in several:
            own = x.view(rows, -1, *x.shape[1:])
            several[name] = torch.cat([own, own.flip(-1) if x.is_floating_point() else own], dim=1).flatten(0, 1)
    return several


def _adapted() -> tuple[PreTrainedModel, PreTrainedModel]:
    import peft

    base, draft = family("llama")
    lora = {"r": 4, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False}
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft asks for what transformers has renamed
        torch.manual_seed(1)
        model = peft.get_peft_model(copy.deepcopy(base), peft.LoraConfig(**lora), adapter_name="one")
        model.add_adapter("two", peft.LoraConfig(**lora))
    return model.eval(), draft
