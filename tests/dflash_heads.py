"""DFlash heads for tiny targets, and checkpoints of them as other tools write them."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import embedding
from transformers import PreTrainedModel

from hf_lossy_assist.generation.drafters.dflash import DFlash, DFlashConfig
from hf_lossy_assist.generation.drafters.state_heads import LayerStates
from tests.eagle3_heads import SIZES, filled, layer
from tests.tiny_models import VOCAB, prompts, tiny

BLOCK = 6
MASK = VOCAB - 1
SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5, "use_sliding_window": True}
CONVENTIONS = {
    "plain": {},
    "causal": {"is_causal": True},
    "sliding": {"layers": SLIDING},
    "sliding both ways": {"layers": SLIDING, "is_causal": False},
    "scaled": {"input_embedding_scale": 3.0, "output_multiplier": 0.5, "final_logit_softcapping": 2.0},
    "biases": {"layers": {"attention_bias": False, "num_hidden_layers": 1}, "target_layers": (1,)},
}


def random_dflash(drafted: int | None = None, seed: int = 0, layers: dict | None = None, **values) -> DFlash:
    """Return a head of random weights; ``layers`` are values of its layers' configuration."""
    config = layer("qwen3", **{"num_hidden_layers": 2} | (layers or {}))
    defaults = {"target_hidden_size": 32, "target_layers": (0, 1), "block_size": BLOCK, "mask_token_id": MASK}
    defaults["mask_token_id"] = config.vocab_size - 1
    return filled(DFlash(DFlashConfig(config, drafted or config.vocab_size, **defaults | values)), seed)


def trained_dflash(target, prompts: torch.Tensor, steps: int = 60, **values) -> DFlash:
    """Return a head that knows what a target writes after some prompts, most of it: some of its drafts are kept."""
    head = random_dflash(**values)
    states = LayerStates(target, head.config.layers_of(target))
    with torch.no_grad():
        texts = target.generate(prompts, max_new_tokens=48, do_sample=False, eos_token_id=None, pad_token_id=0)
        with states.watched():
            target(texts)
            read = states.pop()
    length = texts.shape[1]
    size, begin = head.config.block_size, prompts.shape[1]
    anchors = torch.arange(begin, length - size + 1, 2)
    places = anchors[:, None] + torch.arange(size)  # of every other block after the prompts
    ids = texts[:, places].clone()
    ids[..., 1:] = head.config.mask_token_id
    embeds = embedding(ids.flatten(1), head.embeddings(target)).detach()
    block = torch.arange(len(anchors)).repeat_interleave(size)
    before = torch.arange(length)[None] < anchors.repeat_interleave(size)[:, None]
    mask = torch.cat([before, block[:, None] == block[None]], dim=-1)[None, None]
    optimizer = torch.optim.Adam(head.parameters(), lr=4e-3)
    for _ in range(steps):
        cache = head.new_cache()
        head.remember(head.fuse(read), torch.arange(length)[None], cache)
        out = head(embeds, places.flatten()[None], dict.fromkeys(head.config.kinds, mask), cache)
        logits = head.scores(out.unflatten(1, (len(anchors), size))[:, :, 1:], target.get_output_embeddings())
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 2), texts[:, places][..., 1:].flatten())
        optimizer.zero_grad()
        loss.backward(inputs=list(head.parameters()))
        optimizer.step()
    return head.eval()


@functools.cache
def trained_pair(architecture: str = "llama") -> tuple[PreTrainedModel, DFlash]:
    """Return a target of an architecture and a head for it, the same ones to all who ask."""
    target = tiny(architecture)
    return target, trained_dflash(target, prompts())


def muse() -> PreTrainedModel:
    """Return a random model of the one DFlash class in transformers, for targets like a tiny Llama."""
    pytest.importorskip("transformers.models.muse_glimmer_assistant", reason="no DFlash model in this version")
    from transformers import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel

    config = MuseGlimmerAssistantConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, block_size=BLOCK, mask_token_id=MASK, target_layer_ids=[0, 1], bos_token_id=1, eos_token_id=2,
        pad_token_id=0, max_position_embeddings=256,
    )  # fmt: skip
    torch.manual_seed(0)
    model = MuseGlimmerAssistantModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


def published_values(head: DFlash, nested: bool = True) -> dict:
    """Return the ``config.json`` of the package dflash: its newer checkpoints ``nested`` all of their own values."""
    config, inner = head.config, head.config.layer
    own = {"mask_token_id": config.mask_token_id, "target_layer_ids": [i - 1 for i in config.target_layers]}
    size = {"block_size": config.block_size}
    return {
        "architectures": ["DFlashDraftModel"],
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "model_type": "qwen3",
        **{name: getattr(inner, name) for name in (*SIZES, "layer_types", "sliding_window", "use_sliding_window")},
        "rope_theta": inner.rope_parameters["rope_theta"],
        "tie_word_embeddings": False,
        "num_target_layers": 2,
        "dtype": "float32",
        "dflash_config": own | (size if nested else {}),
        **({} if nested else size),
    }


def write_published(head: DFlash, folder: Path, values: dict | None = None, nested: bool = True) -> Path:
    """Write a checkpoint as the package dflash does: no embeddings and no LM head."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(published_values(head, nested) | (values or {})))
    save_file({name: x.clone() for name, x in head.state_dict().items()}, folder / "model.safetensors")
    return folder
