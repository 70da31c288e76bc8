"""EAGLE-3 heads: a decoder layer on a target's own states, which drafts for that target."""

from __future__ import annotations

import re
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from ..compat.caches import CACHE
from .eagle3_config import Eagle3Config
from .state_head import StoredHead, parts_of


class Eagle3(StoredHead):
    """Drafts from three of the target's states at every position; pass it as ``assistant_model`` to ``generate()``.

    One decoder layer reads ``g_t``, the fused states, and ``x_(t+1)``, the token after them. It predicts ``x_(t+2)``
    over a draft vocabulary. From the second drafted token on, the layer's own output replaces g.

    Parameters
    ----------
    config
        Shape and conventions.
    own_embeddings
        Whether it has embeddings of its own; otherwise it reads the target's.

    Examples
    --------
    >>> from transformers import LlamaConfig
    >>> from hf_lossy_assist.drafting.eagle3_config import Eagle3Config
    >>> layer = LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
    ...                     num_attention_heads=2)
    >>> head = Eagle3(Eagle3Config(layer, draft_vocab_size=32, target_hidden_size=16, target_layers=(0, 1, 2)))
    >>> head.fuse(torch.zeros(1, 5, 3 * 16)).shape
    torch.Size([1, 5, 16])
    """

    config_class = Eagle3Config
    files = ("*.safetensors", "pytorch_model*.bin")  # of a .bin file only tensors are read
    renamed = {"midlayer.": "layers.0."}  # noqa: RUF012
    left_out = re.compile(r"t2d|verifier_(lm_head|norm)\..*|.*\.inv_freq")

    def __init__(self, config: Eagle3Config, own_embeddings: bool = False) -> None:
        super().__init__(config)
        layer = config.layer
        decoder_layer, norm, rotary = parts_of(layer)
        width, read = layer.hidden_size, config.layers_read * config.target_hidden_size
        self.embed_tokens = nn.Embedding(layer.vocab_size, width) if own_embeddings else None
        self.input_norm = norm(read, eps=layer.rms_norm_eps) if config.norm_before_fc else None
        self.fc_norm = None
        if config.fc_norm:
            norms = (norm(config.target_hidden_size, eps=layer.rms_norm_eps) for _ in range(config.layers_read))
            self.fc_norm = nn.ModuleList(norms)
        self.fc = nn.Linear(read, width, bias=False)
        later = (decoder_layer(self._inner, i) for i in range(1, layer.num_hidden_layers))
        first = _FirstLayer(decoder_layer(self._inner, 0), norm(width, eps=layer.rms_norm_eps), config)
        self.layers = nn.ModuleList([first, *later])
        self.norm = norm(width, eps=layer.rms_norm_eps)
        self.lm_head = nn.Linear(width, config.draft_vocab_size, bias=False)
        self.rotary_emb = rotary(self._inner)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.long))

    def get_output_embeddings(self) -> nn.Linear:
        """Return the head over the draft vocabulary."""
        return self.lm_head

    def new_cache(self) -> DynamicCache:
        """Return an empty cache for its layers."""
        return DynamicCache(config=self._inner)

    def fuse(self, states: Tensor) -> Tensor:
        """Return g ``(B, L, d)``, fused from the target's states side by side."""
        states = states.to(self.device, self.dtype)
        if self.input_norm is not None:
            states = self.input_norm(states)
        if self.fc_norm is not None:
            chunks = states.chunk(len(self.fc_norm), dim=-1)
            states = torch.cat([norm(chunk) for norm, chunk in zip(self.fc_norm, chunks, strict=True)], dim=-1)
        return self.fc(states)

    def forward(
        self, embeds: Tensor, states: Tensor, positions: Tensor, mask: Tensor | None, cache: DynamicCache
    ) -> Tensor:
        """Run the layers over positions, and add these to the cache.

        Parameters
        ----------
        embeds
            ``(B, L, d)`` embeddings of the tokens that follow the states.
        states
            ``(B, L, d)`` g of the target's states, or this method's output for the positions before.
        positions
            ``(B, L)`` where the states stand in the text.
        mask
            ``(B, 1, L, cached + L)`` True where a position is seen; None where all are.
        cache
            Keys and values of earlier positions.

        Returns
        -------
        Tensor
            ``(B, L, d)`` the input of :meth:`logits`, and of the next drafted token in place of g.
        """
        rotary = self.rotary_emb(states, positions)
        kwargs = {"attention_mask": mask, CACHE: cache, "position_embeddings": rotary}
        first, *later = self.layers
        states = first(embeds.to(states), states, **kwargs)
        for layer in later:
            states = layer(states, **kwargs)
        return self.norm(states) if self.config.norm_output else states

    def logits(self, states: Tensor) -> Tensor:
        """Return logits ``(B, L, V_draft)`` from the output of :meth:`forward`."""
        return self.lm_head(states if self.config.norm_output else self.norm(states))

    @classmethod
    def _blank(cls, config: Eagle3Config, weights: dict[str, Tensor]) -> Self:
        if config.draft_vocab_size == config.layer.vocab_size:
            weights.setdefault("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.long, device="cpu"))
        return cls(config, "embed_tokens.weight" in weights)


class _FirstLayer(nn.Module):
    """A decoder layer whose attention reads the token's embedding beside the state."""

    def __init__(self, plain: nn.Module, norm: nn.Module, config: Eagle3Config) -> None:
        super().__init__()
        self.self_attn, self.mlp = plain.self_attn, plain.mlp
        self.input_layernorm = plain.input_layernorm
        self.post_attention_layernorm = plain.post_attention_layernorm
        self.hidden_norm = norm
        self.norm_before_residual = config.norm_before_residual
        for name in ("q_proj", "k_proj", "v_proj"):
            old = getattr(self.self_attn, name)
            new = nn.Linear(2 * config.layer.hidden_size, old.out_features, bias=old.bias is not None)
            setattr(self.self_attn, name, new)

    def forward(self, embeds: Tensor, states: Tensor, **kwargs: Any) -> Tensor:
        normed = self.hidden_norm(states)
        residual = normed if self.norm_before_residual else states
        both = torch.cat([self.input_layernorm(embeds), normed], dim=-1)
        states = residual + self.self_attn(hidden_states=both, **kwargs)[0]
        return states + self.mlp(self.post_attention_layernorm(states))
