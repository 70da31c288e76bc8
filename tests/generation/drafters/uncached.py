"""The scores of EAGLE-3 heads, computed without a cache."""

from __future__ import annotations

import torch
from torch.nn.functional import embedding

from hf_lossy_assist.generation.drafters.state_heads import LayerStates


@torch.no_grad()
def eagle3_logits(target, head, text: torch.Tensor, drafted: torch.Tensor) -> torch.Tensor:
    """``(n, V_draft)`` logits of drafted tokens ``(n,)`` after a text ``(L,)``, without any cache that is kept."""
    states = LayerStates(target, head.config.layers_of(target))
    with states.watched():
        target(text[None, :-1], use_cache=False)
        read = states.pop()
    tokens = embedding(torch.cat([text, drafted])[None], head.embeddings(target))
    length, cache = len(text) - 1, head.new_cache()
    causal = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
    out = head(tokens[:, 1 : length + 1], head.fuse(read), torch.arange(length)[None], causal, cache)[:, -1:]
    rows = [head.logits(out)]
    for step in range(len(drafted) - 1):
        at = length + step
        out = head(tokens[:, at + 1 : at + 2], out, torch.tensor([[at]]), None, cache)
        rows.append(head.logits(out))
    return torch.cat(rows, dim=1)[0]


def _normed(states: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return weight * states * (states.square().mean(-1, keepdim=True) + eps).rsqrt()


def _rotated(states: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    """Rotate ``(L, heads, size)``: entry i turns with entry i + size / 2."""
    half = states.shape[-1] // 2
    angles = positions[:, None, None] * theta ** (-torch.arange(half) / half)
    first, second = states[..., :half], states[..., half:]
    return torch.cat(
        [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], dim=-1
    )


@torch.no_grad()
def dflash_logits(target, head, text: torch.Tensor, count: int, unknown: int = 0) -> torch.Tensor:
    """``(count, V_draft)`` logits of a block after a text ``(L,)``, as the package dflash computes them.

    There is no cache, and nothing of the head but its weights and values is used. The target's states at the first
    ``unknown`` tokens are not read.
    """
    config, layer, weights = head.config, head.config.layer, head.state_dict()
    size, eps, theta = layer.head_dim, layer.rms_norm_eps, layer.rope_parameters["rope_theta"]
    hidden = target(text[None, :-1], use_cache=False, output_hidden_states=True).hidden_states
    missing = target.config.model_type.startswith("mamba")  # whose first one is what leaves the first layer
    read = torch.cat([hidden[i - missing][0] for i in config.target_layers], dim=-1).float()
    context = _normed(read[unknown:] @ weights["fc.weight"].T, weights["hidden_norm.weight"], eps)
    block = torch.cat([text[-1:], torch.full((count,), config.mask_token_id)])
    states = target.get_input_embeddings().weight[block].float() * config.input_embedding_scale
    positions = torch.arange(unknown, len(text) + count)
    distances = positions[-count - 1 :, None] - positions
    for i, kind in enumerate(layer.layer_types):
        own = {name.removeprefix(f"layers.{i}."): x for name, x in weights.items() if name.startswith(f"layers.{i}.")}
        normed = _normed(states, own["input_layernorm.weight"], eps)
        both = torch.cat([context, normed])
        q, k, v = (
            (x @ own[f"self_attn.{name}_proj.weight"].T).unflatten(-1, (-1, size))
            for name, x in (("q", normed), ("k", both), ("v", both))
        )
        q = _rotated(_normed(q, own["self_attn.q_norm.weight"], eps), positions[-count - 1 :], theta)
        k = _rotated(_normed(k, own["self_attn.k_norm.weight"], eps), positions, theta)
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
        seen = torch.ones_like(distances, dtype=torch.bool)
        slides = kind == "sliding_attention"
        if slides:
            seen &= distances.abs() < layer.sliding_window
        if config.is_causal or (config.is_causal is None and slides):
            seen &= distances >= 0
        scores = torch.einsum("qhd,khd->hqk", q, k) / size**0.5
        law = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        states = states + torch.einsum("hqk,khd->qhd", law, v).flatten(1) @ own["self_attn.o_proj.weight"].T
        normed = _normed(states, own["post_attention_layernorm.weight"], eps)
        gate, up, down = (own[f"mlp.{name}_proj.weight"].T for name in ("gate", "up", "down"))
        states = states + (torch.nn.functional.silu(normed @ gate) * (normed @ up)) @ down
    normed = _normed(states, weights["norm.weight"], eps)[1:]
    matrix = weights.get("lm_head.weight")
    logits = target.get_output_embeddings()(normed) if matrix is None else normed @ matrix.T
    logits, most = logits.float() * config.output_multiplier, config.final_logit_softcapping
    return most * (logits / most).tanh() if most else logits
