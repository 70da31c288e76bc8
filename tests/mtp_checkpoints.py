"""Tiny random checkpoints with a layer for multi-token prediction, under the names that families give its parts."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from hf_lossy_assist.generation.drafters.mtp import Mtp, mtp_of
from tests import eagle3_heads
from tests.architectures import made
from tests.tiny_models import prompts


def _maker(name: str, **sizes: Any) -> Callable[..., PreTrainedModel]:
    return lambda seed, **values: made(name, seed, **sizes | values).float()


@dataclass(frozen=True)
class Family:
    """How a tiny target is made, and what its checkpoints call the parts of the MTP layer."""

    make: Callable[..., PreTrainedModel]
    layer: str
    parts: Mapping[str, str]  # enorm, hnorm, eh_proj, norm


_QWEN = ("mtp.layers.0.", {
    "enorm": "mtp.pre_fc_norm_embedding", "hnorm": "mtp.pre_fc_norm_hidden", "eh_proj": "mtp.fc", "norm": "mtp.norm",
})  # fmt: skip
_DEEPSEEK = ("model.layers.2.", {
    name: f"model.layers.2.{theirs}"
    for name, theirs in {"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj", "norm": "shared_head.norm"}.items()
})  # fmt: skip
_MIMO = ("model.mtp_layers.0.", {
    name: f"model.mtp_layers.0.{theirs}"
    for name, theirs in {
        "enorm": "token_layernorm", "hnorm": "hidden_layernorm", "eh_proj": "input_proj", "norm": "final_layernorm",
    }.items()
})  # fmt: skip

FAMILIES = {
    "qwen3_next": Family(_maker("qwen3_next"), *_QWEN),
    "qwen3_5": Family(_maker("qwen3_5_text"), *_QWEN),
    "qwen3_5_moe": Family(_maker("qwen3_5_moe_text"), *_QWEN),
    "mimo": Family(_maker("qwen2"), *_MIMO),
    "deepseek_v3": Family(_maker("deepseek_v3", first_k_dense_replace=0), *_DEEPSEEK),
    "glm4_moe": Family(_maker("glm4_moe", use_qk_norm=True), *_DEEPSEEK),
}


def write(name: str, folder: Path, seed: int = 0, shards: bool = False, **values) -> Path:
    """Write a checkpoint; its MTP layer has the weights of another model's last one."""
    family = FAMILIES[name]
    weights = saved(family.make(seed, **values), folder)
    mtp = layer(family, saved(family.make(seed + 1, **values), folder / "donor"), seed)
    if name in ("deepseek_v3", "glm4_moe"):  # copies of the target's, as their checkpoints have them
        mtp[f"{family.layer}embed_tokens.weight"] = weights["model.embed_tokens.weight"].clone()
        mtp[f"{family.layer}shared_head.head.weight"] = weights["lm_head.weight"].clone()
    if not shards:
        save_file(weights | mtp, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    (folder / "model.safetensors").unlink()
    for file, tensors in (("a.safetensors", weights), ("b.safetensors", mtp)):
        save_file(tensors, folder / file, metadata={"format": "pt"})
    places = dict.fromkeys(weights, "a.safetensors") | dict.fromkeys(mtp, "b.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


def layer(family: Family, donor: Mapping[str, Tensor], seed: int = 0) -> dict[str, Tensor]:
    """Return the tensors of an MTP layer, with the weights of a donor's second layer."""
    generator, width = torch.Generator().manual_seed(seed), 32
    mtp = {family.layer + key.partition(".layers.1.")[2]: x.clone() for key, x in donor.items() if ".layers.1." in key}
    for part, theirs in family.parts.items():
        shape = (width, 2 * width) if part == "eh_proj" else (width,)
        mtp[f"{theirs}.weight"] = torch.randn(shape, generator=generator) * 0.3
    return mtp


def saved(model: PreTrainedModel, folder: Path) -> dict[str, Tensor]:
    model.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def loaded(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def taught(target: PreTrainedModel, steps: int = 60) -> Mtp:
    """Return a target's MTP layer, which has learnt most of what the target writes after some prompts."""
    head = mtp_of(target).requires_grad_(True)
    with torch.no_grad():
        texts = target.generate(prompts(), max_new_tokens=40, do_sample=False, eos_token_id=None, pad_token_id=0)
        read = target.get_decoder()(texts).last_hidden_state
        labels = target(texts).logits.softmax(-1)
    eagle3_heads.taught(head, target, texts, read, labels, steps, rate=1e-2)
    return head.requires_grad_(False)


@functools.cache
def trained_pair(name: str = "mimo") -> tuple[PreTrainedModel, Mtp]:
    """Return a target of a family and its MTP layer, the same ones to all who ask."""
    with TemporaryDirectory() as folder:
        target = loaded(write(name, Path(folder)))
        return target, taught(target)
