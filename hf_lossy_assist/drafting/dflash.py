"""DFlash heads: they draft a block of tokens in one forward, from a target's own states."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import DynamicCache, PreTrainedModel

from ..compat.caches import CACHE
from ..errors import LossyValueError
from ..heads.identity import row_norms
from .dflash_config import DFlashConfig
from .state_head import StoredHead, parts_of


class DFlash(StoredHead):
    """Drafts a block of tokens at once from states of the target; pass it as ``assistant_model`` to ``generate()``.

    A block has the text's newest token and then mask tokens. Each of its positions attends to the block and, in every
    layer, to keys and values made of the target's states at all tokens before. The target's own LM head turns the
    states at the mask tokens into q, so the tokens of a block are drawn independently: q is the product of the
    positions' laws. After DFlash, `arXiv:2602.06036 <https://arxiv.org/abs/2602.06036>`_.

    Parameters
    ----------
    config
        Shape and conventions.

    Examples
    --------
    >>> from transformers import Qwen3Config
    >>> from hf_lossy_assist.drafting.dflash_config import DFlashConfig
    >>> layer = Qwen3Config(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
    ...                     num_attention_heads=2, num_key_value_heads=2, head_dim=8)
    >>> head = DFlash(DFlashConfig(layer, draft_vocab_size=64, target_hidden_size=16, target_layers=(1, 2),
    ...                            block_size=8, mask_token_id=63))
    >>> head.fuse(torch.zeros(1, 5, 2 * 16)).shape, head.longest
    (torch.Size([1, 5, 16]), 7)
    """

    config_class = DFlashConfig
    renamed = {"encoder.fc.": "fc.", "encoder.output_norm_enc.": "hidden_norm."}  # noqa: RUF012
    left_out = re.compile(r"t2d|embed_tokens\..*|verifier_(lm_head|norm)\..*|.*\.inv_freq")

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__(config)
        layer, drafted, self.longest = config.layer, config.draft_vocab_size, config.block_size - 1
        decoder_layer, norm, rotary = parts_of(layer)
        width = layer.hidden_size
        self.fc = nn.Linear(config.layers_read * config.target_hidden_size, width, bias=False)
        self.hidden_norm = norm(width, eps=layer.rms_norm_eps)
        self.layers = nn.ModuleList([decoder_layer(self._inner, i) for i in range(layer.num_hidden_layers)])
        for one in self.layers:
            one.self_attn.is_causal = False  # where no mask says otherwise
        self.norm = norm(width, eps=layer.rms_norm_eps)
        self.rotary_emb = rotary(self._inner)
        some = drafted < layer.vocab_size
        self.lm_head = nn.Linear(width, drafted, bias=False) if some else None
        self.register_buffer("d2t", torch.zeros(drafted, dtype=torch.long) if some else None)
        self.scores = _Scores(config, self.lm_head, self.fc)

    def get_output_embeddings(self) -> _Scores:
        """Return what turns states into logits."""
        return self.scores

    def check(self, target: PreTrainedModel) -> None:
        super().check(target)
        if self.config.mask_token_id >= (size := len(self.embeddings(target))):
            raise LossyValueError(
                f"`assistant_model` is a DFlash head with `mask_token_id` {self.config.mask_token_id}, but the target "
                f"has embeddings of {size} tokens; pass a head that was trained for this target"
            )

    def new_cache(self) -> DynamicCache:
        """Return an empty cache for its layers, which keeps what has left a sliding window, too."""
        return DynamicCache()

    def fuse(self, states: Tensor) -> Tensor:
        """Return g ``(B, L, d)``, fused from the target's states side by side."""
        return self.hidden_norm(self.fc(states.to(self.device, self.dtype)))

    def remember(self, g: Tensor, positions: Tensor, cache: DynamicCache) -> None:
        """Add keys and values of fused states ``(B, L, d)`` at ``positions`` ``(B, L)`` to the cache."""
        cos, sin = (x[:, None] for x in self.rotary_emb(g, positions))
        for i, layer in enumerate(self.layers):
            attention = layer.self_attn
            shape = (*g.shape[:-1], -1, attention.head_dim)
            keys = attention.k_norm(attention.k_proj(g).view(shape)).transpose(1, 2)
            first, second = keys.chunk(2, dim=-1)
            keys = keys * cos + torch.cat([-second, first], dim=-1) * sin
            cache.update(keys, attention.v_proj(g).view(shape).transpose(1, 2), i)

    def forward(
        self,
        embeds: Tensor,
        positions: Tensor,
        masks: Mapping[tuple[int | None, bool], Tensor | None],
        cache: DynamicCache,
    ) -> Tensor:
        """Run the layers over a block, and add it to the cache.

        Parameters
        ----------
        embeds
            ``(B, n + 1, d)`` embeddings of the text's newest token, and of n mask tokens.
        positions
            ``(B, n + 1)`` where they stand in the text.
        masks
            ``(B, 1, n + 1, cached + n + 1)`` True where a position is seen, or None where all are, for each of the
            configuration's ``kinds`` of layers.
        cache
            Keys and values of the text before.

        Returns
        -------
        Tensor
            ``(B, n + 1, d)`` what the LM head reads; at the newest token, it is of no use.
        """
        states = embeds * self.config.input_embedding_scale
        rotary = self.rotary_emb(states, positions)
        for layer, kind in zip(self.layers, self.config.kinds, strict=True):
            states = layer(states, attention_mask=masks[kind], position_embeddings=rotary, **{CACHE: cache})
        return self.norm(states)

    @classmethod
    def _blank(cls, config: DFlashConfig, weights: dict[str, Tensor]) -> DFlash:
        if config.draft_vocab_size == config.layer.vocab_size:  # older versions of speculators copy the target's head
            for name in weights.keys() & {"lm_head.weight", "d2t"}:
                del weights[name]
        return cls(config)


class _Scores(nn.Module):
    """Turns states into logits, by the target's LM head unless the head has one for fewer tokens."""

    def __init__(self, config: DFlashConfig, lm_head: nn.Linear | None, fc: nn.Linear) -> None:
        super().__init__()
        self.config = config
        self._of_head = lm_head, fc  # in a tuple, they are no submodules

    def forward(self, states: Tensor, of_target: nn.Module) -> Tensor:
        config, lm_head = self.config, self._of_head[0]
        lm_head = of_target if lm_head is None else lm_head
        weight = getattr(lm_head, "weight", None)
        if type(lm_head) is nn.Linear and type(weight) is nn.Parameter and "forward" not in vars(lm_head):
            # Not as a module: what times or watches the target's head is about the target's own states.
            logits = linear(states.to(weight), weight, lm_head.bias)
        else:
            logits = lm_head(states)
        logits, most = logits.float() * config.output_multiplier, config.final_logit_softcapping
        return (logits / most).tanh() * most if most else logits

    @property
    def out_features(self) -> int:
        return self.config.draft_vocab_size

    @property
    def in_features(self) -> int:
        return self.config.layer.hidden_size

    @property
    def row_norms(self) -> tuple[float, ...]:
        """By these, identities know the head."""
        return row_norms(self._of_head[1].weight)
