"""EAGLE-3 heads: a decoder layer on a target's own states, which drafts for that target."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import DynamicCache, LlamaConfig
from transformers.modeling_outputs import CausalLMOutput

from ...compat.caches import CACHE
from ...core.distributions import Randomness
from ...core.messages import Commit
from ...core.texts import RowShift
from ...core.transfers import to_device
from ...drafting import state_head
from ...drafting.chain import ChainDrafter
from ...drafting.state_head import StateHeadConfig, StoredHead
from ...errors import LossyUnsupportedError, LossyValueError
from ...models.runner import Nodes, WholeTokens
from ...models.static.fixed import FixedSampler, Prepare, WholeDraft, chained
from ...models.static.forwards import shallow
from ...models.static.graphs import weights_of
from ...values import BOOL
from .base import register
from .state_heads import HeadRunner, StateHeadKind

_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
_LAYERS = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True, eq=False)
class Eagle3Config(StateHeadConfig):
    """The shape and the conventions of an EAGLE-3 head."""

    title = "an EAGLE-3 head"
    model_type = "eagle3"
    names = ("eagle3", "LlamaForCausalLMEagle3")
    writers = "SafeAILab's EAGLE, SpecForge or speculators"
    rules = {**dict.fromkeys(_FLAGS, state_head.or_null(BOOL)), _LAYERS: state_head.LAYERS}  # noqa: RUF012
    norm_before_residual: bool = False  # whether the layer's residual is the normed state
    norm_before_fc: bool = False  # whether the states are normed before they are fused, all at once
    fc_norm: bool = False  # likewise, each by itself
    norm_output: bool = False  # whether the normed output replaces the fused states from the second drafted token on

    def __post_init__(self) -> None:
        kinds = getattr(self.layer, "layer_types", None) or ()
        if self.layer.model_type not in state_head.LAYER_TYPES or set(kinds) - {"full_attention"}:
            raise LossyUnsupportedError(
                f"an EAGLE-3 head has to have layers of {list(state_head.LAYER_TYPES)} with full attention, but this "
                f"head has {self.layer.model_type!r} with {sorted(set(kinds)) or 'full attention'}; pass another head"
            )
        if self.norm_before_fc and self.fc_norm:
            raise LossyValueError("an EAGLE-3 head has either `norm_before_fc` or `fc_norm`, but this head has both")

    @classmethod
    def describes(cls, values: Mapping[str, Any]) -> bool:
        unnamed = state_head.kind_of(values) == "LlamaForCausalLM" and "draft_vocab_size" in values
        return unnamed or super().describes(values)

    @classmethod
    def _read(cls, values: Mapping[str, Any]) -> Eagle3Config:
        if "speculators_model_type" not in values:
            cls.check_values(values, ("hidden_size", "vocab_size"))
            return cls._of_eagle(values)
        cls.check_values(values, ("transformer_layer_config", "draft_vocab_size"))
        return cls.of_speculators(values, _LAYERS, **{name: bool(values.get(name, False)) for name in _FLAGS})

    @classmethod
    def _of_eagle(cls, values: Mapping[str, Any]) -> Eagle3Config:
        own = values.get("eagle_config") or {}
        outputs = own.get(_LAYERS)
        return cls(
            layer=cls.layer_config(LlamaConfig, {**values, "num_hidden_layers": 1}),
            draft_vocab_size=values.get("draft_vocab_size") or values["vocab_size"],
            target_hidden_size=values.get("target_hidden_size") or values["hidden_size"],
            # These number the layers' outputs: layer i's is what enters layer i + 1.
            target_layers=None if outputs is None else tuple(i + 1 for i in outputs),
            **{name: bool(own.get(name, values.get(name, False))) for name in _FLAGS},
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a ``config.json`` as speculators writes it."""
        return super().to_dict() | {
            "architectures": ["Eagle3DraftModel"],
            _LAYERS: None if self.target_layers is None else list(self.target_layers),
            **{name: getattr(self, name) for name in _FLAGS},
            "embed_requires_grad": False,
        }


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
    >>> from hf_lossy_assist.generation.drafters.eagle3 import Eagle3Config
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
        decoder_layer, norm, rotary = state_head.parts_of(layer)
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


class Eagle3Runner(HeadRunner):
    """Runs an EAGLE-3 head, or an MTP layer, for a target.

    Its slot t holds the target's state at token t and the token after it.
    """

    ahead = 1
    _state: Tensor | None = None  # the output at the newest slot
    _nodes: Tensor | None = None  # the outputs at the nodes that were read last

    def _read(self, commit: Commit, g: Tensor) -> None:
        before, longest = self.seen, max(commit.counts)
        ids = commit.ids[:, before + 1 : commit.start + longest]
        counts = to_device(commit.counts, ids.device)[:, None]
        over = torch.arange(before + 1 - commit.start, longest, device=ids.device) >= counts
        # Beyond the end of shorter rows, anything will do.
        output = self._over(ids.masked_fill(over, 0), g, *self._next(ids.shape[1]))
        last = (counts + commit.start - 2 - before).clamp(min=0).to(output.device)
        self._state = output.gather(1, last[..., None].expand(-1, -1, output.shape[-1]))

    def _run(self, tokens: Tensor, keep: int, tree: Nodes | None, skip: int, overrides: Any) -> CausalLMOutput:
        if tree is not None:  # which takes the outputs at its parents
            self._nodes = self._over_nodes(tokens, tree)
            return CausalLMOutput(logits=self.model.logits(self._nodes))
        if tokens.shape[1]:  # the first drafted token needs no forward: its state has been read
            self._state = self._over(tokens, self._state, *self._next(tokens.shape[1]))
        return CausalLMOutput(logits=self.model.logits(self._state))

    def _over_nodes(self, tokens: Tensor, tree: Nodes) -> Tensor:
        rows, k, slots = tree.ancestors.shape
        before, read = self._state if slots == k else self._nodes, self.seen - (slots - k)
        device = before.device
        if self._mask is None:
            newest, text = torch.full((rows, 1), read, device=device), torch.ones(1, read - self._first, device=device)
        else:
            there = self._covering(read + 1)
            newest, text = there.sum(-1, keepdim=True) - 1, there[:, self._first : -1]
        sees = torch.cat([text.bool()[:, None].expand(rows, k, -1), tree.ancestors.to(device)], dim=-1)
        states = before[torch.arange(rows, device=device)[:, None], tree.parents.to(device)]
        return self._over(tokens, states, newest + tree.depths[:, -k:].to(device) - 1, sees[:, None])

    def _move(self, shift: RowShift, ids: Tensor) -> None:
        super()._move(shift, ids)
        self._state = self._state.index_select(0, shift.index.to(self._state.device))

    def _next(self, count: int) -> tuple[Tensor, Tensor | None]:
        """Return positions and mask of the next ``count`` slots."""
        positions, there = self._places(count)
        slots = torch.arange(self._first, self.seen + count, device=self.device)
        queries = slots[-count:, None]
        if there is not None:
            # Padding sees itself, since attention over nothing gives NaN.
            return positions, ((slots <= queries) & there[:, None] | (slots == queries))[:, None]
        return positions, (slots <= queries)[None, None] if count > 1 else None

    def _over(self, ids: Tensor, states: Tensor, positions: Tensor, mask: Tensor | None, eager: bool = False) -> Tensor:
        """Run the head over the next slots; ``ids`` ``(B, n)`` are the tokens after those of the slots."""
        embeds = state_head.embedded(ids, self.embeddings, self.device).to(states.dtype)
        mask = self.fixed.whole(mask, *ids.shape, self._start)
        output = self.fixed.run(False, self._start, (embeds, states, positions), mask, eager=eager)
        self.seen, self.sent = self.seen + ids.shape[1], ids.numel()
        return output

    def kind(self, of_tree: bool) -> Hashable:
        return self.target_size, self.embeddings.data_ptr(), weights_of(self.model.get_output_embeddings())

    @staticmethod
    def body(model: nn.Module, of_tree: bool, decorated: bool) -> Callable[..., tuple[Tensor, ...]]:
        head = shallow(model)
        return lambda *inputs, cache: (head.forward(*inputs, cache),)

    def drafting(self, length: int, sampler: FixedSampler, decorated: bool, prepare: Prepare) -> Callable[..., Any]:
        head, embeddings = shallow(self.model), self.embeddings
        read, scored = prepare("read", lambda _: head.forward), prepare("scored", lambda _: head.logits)
        vocabulary, device = self.vocabulary, self.device

        def body(state: Tensor, positions: Tensor, mask: Tensor, waits: Tensor | None, cache: Any) -> Any:
            def step(i: int, token: Tensor | None, waits: Tensor | None) -> tuple[Tensor, ...]:
                nonlocal state
                if i:  # the first token follows from a state that has been read
                    embeds, at = state_head.embedded(token, embeddings, device), slice(i - 1, i)
                    state = read(embeds, state, positions[:, at].contiguous(), mask[:, :, at].contiguous(), cache)
                chosen = sampler(vocabulary.logits(scored(state).float()), waits)
                return (*chosen, state) if sampler.scores else chosen  # another draft may go on from it

            return chained(step, length, waits)

        return body

    def trial(self, of_tree: bool, width: int, eager: bool) -> Tensor:
        self.seen = 0
        tokens = torch.zeros(self.fixed.slot.rows, width, dtype=torch.long, device=self.device)
        return self.model.logits(self._over(tokens, self._anything(width), *self._next(width), eager=eager))

    def trial_draft(self, draft: WholeDraft, waits: Tensor | None) -> Tensor:
        self.seen, self._state = 0, self._anything(1)
        return self._drafted(draft, waits)[1]

    def draft(self, text: Tensor, count: int, randomness: Randomness) -> WholeTokens | None:
        chain = self.chain_for(count)
        if chain is None or not self.fixed.slot.fits(self._start, chain.length):
            return None
        if (unread := text[:, self.seen + self.ahead :]).shape[1]:  # the last token of what it has drafted
            self._state = self._over(unread, self._state, *self._next(unread.shape[1]))
        waits, states = self.fixed.waits(chain, text, count, randomness)
        drafted = [x[:, :count] for x in self._drafted(chain, waits)]
        if chain.sampler.scores:
            self._state = drafted.pop()[:, -1:]
        self.sent, self.seen = self.sent + len(text) * (count - 1), self.seen + count - 1
        return WholeTokens(*drafted, states=states)

    def _drafted(self, draft: WholeDraft, waits: Tensor | None) -> tuple[Tensor, ...]:
        rows, count = len(self._state), max(1, draft.length - 1)
        positions, mask = self._next(count)
        self.fixed.begin(self._start, draft.length - 1, prepared=draft in self.fixed.chains)
        return draft(
            state=self._state,
            positions=positions.expand(rows, -1).contiguous(),
            mask=self.fixed.whole(mask, rows, count, self._start),
            waits=waits,
            cache=self.fixed.slot.cache,
        )


@register
class Eagle3Kind(StateHeadKind):
    """`assistant_model` is an EAGLE-3 head, which drafts chains and trees."""

    gives = StateHeadKind.gives | {"tree"}
    head, strategy, runner = Eagle3, ChainDrafter, Eagle3Runner
