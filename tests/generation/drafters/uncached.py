"""The scores of EAGLE-3 and DFlash heads and of MTP layers, computed without a cache."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, silu

from hf_lossy_assist.generation.drafters.state_heads import LayerStates
from tests.mtp_checkpoints import Family


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


class Reference:
    """An MTP layer of Qwen3-Next, Qwen3.5 or MiMo, after vLLM's ``qwen3_next_mtp.py`` and ``mimo_mtp.py``."""

    def __init__(self, weights: Mapping[str, Tensor], family: Family, config) -> None:
        self.weights, self.family, self.config = weights, family, config
        self.centred = family.layer.startswith("mtp.")  # Qwen's norms multiply by 1 + weight
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.width = getattr(config, "head_dim", None) or config.hidden_size // self.heads

    @torch.no_grad()
    def logits(self, target, text: Tensor, drafted: Tensor) -> Tensor:
        """``(n, V)`` logits of drafted tokens ``(n,)`` after a text ``(L,)``."""
        states = target.get_decoder()(text[None, :-1], use_cache=False).last_hidden_state[0]
        tokens, rows, out = torch.cat([text, drafted]), [], states[:0]
        for _ in range(len(drafted)):
            states = torch.cat([states, out[-1:]])
            out = self._layer(states, embedding(tokens[1 : len(states) + 1], self.weights["model.embed_tokens.weight"]))
            rows.append(linear(out[-1], self.weights["lm_head.weight"]))
        return torch.stack(rows)

    def _layer(self, states: Tensor, embeds: Tensor) -> Tensor:
        parts = self.family.parts
        both = [self._norm(parts["enorm"], embeds), self._norm(parts["hnorm"], states)]
        if "mtp_layers" in self.family.layer:
            both.reverse()
        x = self._linear(parts["eh_proj"], torch.cat(both, dim=-1))
        x = x + self._attention(self._norm(self._name("input_layernorm"), x))
        x = x + self._mlp(self._norm(self._name("post_attention_layernorm"), x))
        return self._norm(parts["norm"], x)

    def _attention(self, x: Tensor) -> Tensor:
        length, gate = len(x), None
        q, k, v = (self._linear(self._name(f"self_attn.{name}_proj"), x) for name in "qkv")
        if self.centred:  # a gate beside every head's query
            q, gate = q.view(length, self.heads, 2 * self.width).chunk(2, dim=-1)
        q, k, v = (y.reshape(length, -1, self.width) for y in (q, k, v))
        if self.centred:
            q, k = self._norm(self._name("self_attn.q_norm"), q), self._norm(self._name("self_attn.k_norm"), k)
        q, k = self._turned(q), self._turned(k)
        k, v = (y.repeat_interleave(self.heads // self.kv_heads, dim=1) for y in (k, v))
        scores = torch.einsum("ihd,jhd->hij", q, k) / self.width**0.5
        scores = scores.masked_fill(~torch.ones(length, length, dtype=torch.bool).tril(), -torch.inf)
        out = torch.einsum("hij,jhd->ihd", scores.softmax(-1), v)
        out = out if gate is None else out * gate.sigmoid()
        return self._linear(self._name("self_attn.o_proj"), out.reshape(length, -1))

    def _turned(self, x: Tensor) -> Tensor:
        rope = self.config.rope_parameters
        width = int(self.width * rope.get("partial_rotary_factor", 1.0))
        angles = torch.arange(len(x))[:, None] * rope["rope_theta"] ** (-torch.arange(0, width, 2) / width)
        cos, sin = angles.cos().repeat(1, 2)[:, None], angles.sin().repeat(1, 2)[:, None]
        first, second = x[..., : width // 2], x[..., width // 2 : width]
        return torch.cat([x[..., :width] * cos + torch.cat([-second, first], -1) * sin, x[..., width:]], -1)

    def _mlp(self, x: Tensor) -> Tensor:
        if self._name("mlp.gate.weight") not in self.weights:
            return self._expert("mlp", x)
        law = self._linear(self._name("mlp.gate"), x).softmax(-1)
        best = law.topk(self.config.num_experts_per_tok)
        chosen = torch.zeros_like(law).scatter(-1, best.indices, best.values / best.values.sum(-1, keepdim=True))
        outputs = torch.stack([self._expert(f"mlp.experts.{i}", x) for i in range(law.shape[-1])], dim=1)
        shared = self._linear(self._name("mlp.shared_expert_gate"), x).sigmoid() * self._expert("mlp.shared_expert", x)
        return (chosen[..., None] * outputs).sum(1) + shared

    def _expert(self, name: str, x: Tensor) -> Tensor:
        gate, up = (self._linear(self._name(f"{name}.{part}_proj"), x) for part in ("gate", "up"))
        return self._linear(self._name(f"{name}.down_proj"), silu(gate) * up)

    def _name(self, part: str) -> str:
        return self.family.layer + part

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def _norm(self, name: str, x: Tensor) -> Tensor:
        normed = x * (x.square().mean(-1, keepdim=True) + self.config.rms_norm_eps).rsqrt()
        return normed * (self.weights[f"{name}.weight"] + self.centred)
