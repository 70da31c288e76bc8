"""The scores of MTP layers, computed from a checkpoint's tensors alone: without a cache, and without our code."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, silu

from tests.mtp_checkpoints import Family


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
