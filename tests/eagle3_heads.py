"""Random EAGLE-3 heads for tiny targets, and checkpoints of them as other tools write them."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, PretrainedConfig, PreTrainedModel, Qwen3Config

from hf_lossy_assist.drafting.state_head import StateHead, StoredHead
from hf_lossy_assist.generation.drafters.eagle3 import Eagle3, Eagle3Config
from hf_lossy_assist.generation.drafters.state_heads import LayerStates
from tests.tiny_models import VOCAB, prompts, tiny

SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
KINDS = {"llama": LlamaConfig, "qwen3": Qwen3Config}


def layer(kind: str = "llama", **values) -> PretrainedConfig:
    """Return the configuration of a tiny decoder layer with rotary positions that are not the default."""
    return KINDS[kind](**SIZES | {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}} | values)


def filled(head: StoredHead, seed: int) -> StoredHead:
    """Give a head random weights, and tokens to draft that are spread over the vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * (0.3 if "norm" in name else 0.2))
            if "norm" in name:
                parameter += 1
        if head.d2t is not None:
            ids = torch.randperm(head.config.layer.vocab_size, generator=generator)[: len(head.d2t)].sort().values
            head.d2t.copy_(ids - torch.arange(len(head.d2t)))
    return head.eval()


def random_head(
    config: PretrainedConfig | None = None, drafted: int = 24, seed: int = 0, own_embeddings: bool = True, **values
) -> Eagle3:
    """Return a head of random weights that drafts tokens spread over the vocabulary."""
    config = layer() if config is None else config
    values = {"target_hidden_size": 32, "target_layers": (0, 1, 2)} | values
    head = Eagle3(Eagle3Config(config, draft_vocab_size=drafted, **values), own_embeddings)
    return filled(head, seed)


def taught(
    head: StateHead, target, texts: torch.Tensor, read: torch.Tensor, labels: torch.Tensor, steps: int, rate: float
) -> None:
    """Teach a head what follows ``texts`` ``(B, L)``, from the target's states ``read`` and its choices ``labels``."""
    embeds = torch.nn.functional.embedding(texts, head.embeddings(target)).detach()
    length = texts.shape[1] - 2
    positions, mask = torch.arange(length)[None], torch.ones(length, length, dtype=torch.bool).tril()[None, None]
    diagonal = torch.eye(length, dtype=torch.bool)[None, None]
    optimizer = torch.optim.Adam(head.parameters(), lr=rate)
    for _ in range(steps):
        cache = head.new_cache()
        states = head(embeds[:, 1:-1], head.fuse(read[:, :-2]), positions, mask, cache)
        loss = -(labels[:, 1:-1] * head.logits(states).log_softmax(-1)).sum(-1).mean()
        # The second step reads the first one's output, and its own position beside the texts before it.
        states = head(embeds[:, 2:], states, positions + 1, torch.cat([mask, diagonal], dim=-1), cache)
        loss = loss - (labels[:, 2:] * head.logits(states).log_softmax(-1)).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def trained_head(target, prompts: torch.Tensor, drafted: int = 48, steps: int = 90, **values) -> Eagle3:
    """Return a head that knows what a target writes after some prompts, most of it: some of its drafts are kept."""
    head = random_head(drafted=drafted, **values)
    states = LayerStates(target, head.config.layers_of(target))
    with torch.no_grad():
        texts = target.generate(prompts, max_new_tokens=48, do_sample=False, eos_token_id=None, pad_token_id=0)
        with states.watched():
            labels = target(texts).logits[..., head.target_ids].softmax(-1)
            read = states.pop()
    taught(head, target, texts, read, labels, steps, rate=5e-3)
    return head.eval()


@functools.cache
def trained_pair(architecture: str = "llama") -> tuple[PreTrainedModel, Eagle3]:
    """Return a target of an architecture and a head for it, the same ones to all who ask."""
    target = tiny(architecture)
    return target, trained_head(target, prompts())


def legacy_values(head: Eagle3, specforge: bool) -> dict:
    """Return the ``config.json`` of SafeAILab's EAGLE, or of SpecForge."""
    config = head.config
    values = {
        "architectures": ["LlamaForCausalLMEagle3" if specforge else "LlamaForCausalLM"],
        "model_type": "llama",
        **{name: value for name, value in SIZES.items() if name != "vocab_size"},
        "vocab_size": config.layer.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        "rope_theta": config.layer.rope_parameters["rope_theta"],
        "torch_dtype": "float32",
    }
    if specforge:
        ids = [i - 1 for i in config.target_layers]
        values["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": True}
    return values


def write_legacy(head: Eagle3, folder: Path, *, specforge: bool, binary: bool = False) -> Path:
    """Write a checkpoint as SafeAILab's EAGLE or SpecForge does."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(legacy_values(head, specforge)))
    weights = {name.replace("layers.0.", "midlayer."): value.clone() for name, value in head.state_dict().items()}
    weights["t2d"] = torch.zeros(head.config.layer.vocab_size, dtype=torch.bool)
    weights["t2d"][head.target_ids] = True
    weights["midlayer.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)  # as older versions of transformers kept it
    if binary:
        torch.save(weights, folder / "pytorch_model.bin")
    else:
        save_file(weights, folder / "model.safetensors")
    return folder
