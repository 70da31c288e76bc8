"""DFlash heads: they draft a block of tokens in one forward, from a target's own states."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad
from transformers import DynamicCache, PretrainedConfig, PreTrainedModel, Qwen3Config
from transformers.modeling_outputs import CausalLMOutput

from ...compat.caches import CACHE
from ...core.distributions import Randomness
from ...core.messages import Commit, Draft
from ...core.texts import Texts
from ...core.transfers import Look
from ...drafting import state_head
from ...drafting.chain import ChainDrafter, Drafted, columns_of
from ...drafting.state_head import StateHeadConfig, StoredHead
from ...errors import LossyUnsupportedError, LossyValueError
from ...heads.identity import row_norms
from ...models.runner import Nodes, WholeTokens
from ...models.static.fixed import FixedSampler, Prepare, WholeDraft, chained
from ...models.static.forwards import shallow
from ...values import BOOL, COUNT, POSITIVE, bounded
from .base import register
from .state_heads import HeadRunner, StateHeadKind

_LAYERS = "aux_hidden_state_layer_ids"
_OF_TRANSFORMERS = "MuseGlimmerAssistantModel"


@dataclass(frozen=True, eq=False, kw_only=True)
class DFlashConfig(StateHeadConfig):
    """The shape and the conventions of a DFlash head; fields of its own have the names that checkpoints give them."""

    title = "a DFlash head"
    model_type = "dflash"
    names = ("dflash", "dflash2", "DFlashDraftModel", "DFlash2DraftModel", _OF_TRANSFORMERS)
    writers = "the packages dflash, speculators or transformers"
    rules = {  # noqa: RUF012
        "block_size": bounded(2, 1024, integer=True),
        "mask_token_id": COUNT,
        "target_layer_ids": state_head.list_of(int, "numbers of layers"),
        "is_causal": state_head.or_null(BOOL),
        "input_embedding_scale": state_head.or_null(POSITIVE),
        "output_multiplier": state_head.or_null(POSITIVE),
        "final_logit_softcapping": state_head.or_null(bounded(0)),
        "sliding_window_non_causal": state_head.or_null(BOOL),
        _LAYERS: state_head.LAYERS,
    }
    block_size: int  # positions of a block: the text's newest token, and drafted ones
    mask_token_id: int  # the token whose embedding stands in place of drafted ones
    # Whether a block's positions see only those before; None where those of layers with sliding windows do.
    is_causal: bool | None = None
    input_embedding_scale: float = 1.0
    output_multiplier: float = 1.0  # of the logits
    final_logit_softcapping: float | None = None

    @property
    def kinds(self) -> list[tuple[int | None, bool]]:
        """Each layer's sliding window, if it has one, and whether its positions see only those before."""
        found = []
        for kind in self.layer.layer_types:
            slides = kind == "sliding_attention"
            causal = slides if self.is_causal is None else self.is_causal
            found.append((self.layer.sliding_window if slides else None, causal))
        return found

    @classmethod
    def _read(cls, values: Mapping[str, Any]) -> DFlashConfig:
        kind = state_head.kind_of(values)
        others = [name for name in ("sample_from_anchor", "shift_label") if values.get(name)]
        others += [f"`projector_type` {x!r}" for x in [values.get("projector_type", "dflash")] if x != "dflash"]
        if others := [*others, *([kind] if kind in ("DFlash2DraftModel", "dflash2") else [])]:
            raise LossyUnsupportedError(
                f"a DFlash head has to draft a block's tokens independently, at their own positions, but this one has "
                f"{others}; pass another head"
            )
        if "speculators_model_type" in values:
            cls.check_values(
                values, ("transformer_layer_config", "draft_vocab_size", "block_size", "mask_token_id", _LAYERS)
            )
            two_sided = False if values.get("sliding_window_non_causal") else None
            return cls.of_speculators(values, _LAYERS, **{"is_causal": two_sided, **cls._own(values)})
        nested = values.get("dflash_config", {})
        values = {**values, **nested} if isinstance(nested, Mapping) else values
        cls.check_values(values, ("hidden_size", "block_size", "mask_token_id", "target_layer_ids"))
        if kind == _OF_TRANSFORMERS:
            values = {"is_causal": False, "use_sliding_window": True, **values}
        layer = cls.layer_config(Qwen3Config, {**values, "model_type": "qwen3"})
        # These number the layers' outputs: layer i's is what enters layer i + 1.
        read = tuple(i + 1 for i in values["target_layer_ids"])
        return cls(
            layer=layer, draft_vocab_size=layer.vocab_size, target_hidden_size=layer.hidden_size, target_layers=read,
            **cls._own(values),
        )  # fmt: skip

    @classmethod
    def _own(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        names = {x.name for x in fields(cls)} & cls.rules.keys()
        return {name: value for name in names if (value := values.get(name)) is not None}

    @classmethod
    def layer_config(cls, kind: type[PretrainedConfig], values: Mapping[str, Any]) -> PretrainedConfig:
        layer = super().layer_config(kind, values)
        if kind is Qwen3Config:
            return layer
        return cls.layer_config(Qwen3Config, layer.to_dict() | {"model_type": "qwen3"})  # whose layers any head has

    def to_dict(self) -> dict[str, Any]:
        """Return a ``config.json`` as speculators writes it."""
        return super().to_dict() | {
            "architectures": ["DFlashDraftModel"],
            _LAYERS: list(self.target_layers),
            "sliding_window_non_causal": self.is_causal is False,
            **{x.name: getattr(self, x.name) for x in fields(self) if x.name in self.rules},
        }


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
    >>> from hf_lossy_assist.generation.drafters.dflash import DFlashConfig
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
        decoder_layer, norm, rotary = state_head.parts_of(layer)
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
        self.out_features, self.in_features = config.draft_vocab_size, config.layer.hidden_size
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
    def row_norms(self) -> tuple[float, ...]:
        """By these, identities know the head."""
        return row_norms(self._of_head[1].weight)


class DFlashRunner(HeadRunner):
    """Runs a DFlash head for a target. Its slot t holds keys and values of the target's state at token t.

    The forwards that others have for trees read blocks.
    """

    def _read(self, commit: Commit, g: Tensor) -> None:
        self._remember(g)

    def _remember(self, g: Tensor, eager: bool = False) -> None:
        self.fixed.run(False, self._start, (g, self._places(g.shape[1])[0]), eager=eager)
        self.seen += g.shape[1]

    def _run(self, tokens: Tensor, keep: int, tree: Nodes | None, skip: int, overrides: Any) -> CausalLMOutput:
        """Return the logits of the ``keep`` tokens after the text's newest one, ``tokens`` ``(B, 1)``.

        The head always reads a whole block, as in its training, where positions see those after them.
        """
        states = self._states(tokens)
        self.sent = states.shape[0] * states.shape[1]
        return CausalLMOutput(logits=self.model.scores(states[:, 1 : keep + 1], self.lm_head))

    def _states(self, newest: Tensor, eager: bool = False) -> Tensor:
        """Run the head over a block, and forget it."""
        embeds, positions, masks = self._inputs(newest)
        states = self.fixed.run(True, self._start, (embeds, positions), masks, eager=eager)
        self.fixed.forget_last(embeds.shape[1])
        return states

    def _inputs(self, newest: Tensor) -> tuple[Tensor, Tensor, dict[tuple[int | None, bool], Tensor | None]]:
        """Return embeddings, positions and masks of a block: which slots it sees, for each kind of layer."""
        config, size, rows = self.model.config, self.model.config.block_size, len(newest)
        tokens = pad(newest, (0, size - 1), value=config.mask_token_id)
        positions, there = self._places(size)
        slots = torch.arange(self._first, self.seen + size, device=self.device)
        distances = slots[-size:, None] - slots
        masks: dict[tuple[int | None, bool], Tensor | None] = {}
        for window, causal in set(config.kinds):
            seen = [] if there is None else [there[:, None, None]]
            seen += [distances >= 0] if causal else []
            if window is not None:
                seen += [distances.abs() < window]
            mask = torch.stack([x.expand(rows, 1, *distances.shape) for x in seen]).all(0) if seen else None
            masks[window, causal] = self.fixed.whole(mask, rows, size, self._start)
        return state_head.embedded(tokens, self.embeddings, self.device).to(self.model.dtype), positions, masks

    def kind(self, of_tree: bool) -> Hashable:
        weight = getattr(self.lm_head, "weight", None)
        return of_tree, self.embeddings.data_ptr(), None if weight is None else weight.data_ptr()

    @staticmethod
    def body(model: nn.Module, of_tree: bool, decorated: bool) -> Callable[..., tuple[Tensor, ...]]:
        head = shallow(model)
        if of_tree:
            return lambda *inputs, cache: (head.forward(*inputs, cache),)

        def remember(g: Tensor, positions: Tensor, cache: Any) -> tuple[Tensor, ...]:
            head.remember(g, positions, cache)
            return (g,)

        return remember

    def drafting(self, length: int, sampler: FixedSampler, decorated: bool, prepare: Prepare) -> Callable[..., Any]:
        head, lm_head, vocabulary = shallow(self.model), self.lm_head, self.vocabulary
        block = prepare("block", lambda _: head.forward)
        scored = prepare("scored", lambda _: lambda states: head.scores(states, lm_head))

        def body(embeds: Tensor, positions: Tensor, masks: Any, waits: Tensor | None, cache: Any) -> Any:
            logits = vocabulary.logits(scored(block(embeds, positions, masks, cache)[:, 1 : length + 1]))
            return chained(lambda i, token, waits: sampler(logits[:, i : i + 1], waits), length, waits)

        return body

    def trial(self, of_tree: bool, width: int, eager: bool) -> Tensor:
        self.seen = 0
        if not of_tree:
            self._remember(self._anything(width), eager)
        states = self._states(self._any_token(), eager or not of_tree)
        return self.model.scores(states[:, 1:], self.lm_head)

    def trial_draft(self, draft: WholeDraft, waits: Tensor | None) -> Tensor:
        self.seen = 0
        return self._drafted(draft, self._any_token(), waits)[1]

    def _any_token(self) -> Tensor:
        return torch.zeros(self.fixed.slot.rows, 1, dtype=torch.long, device=self.device)

    def draft(self, text: Tensor, count: int, randomness: Randomness) -> WholeTokens | None:
        chain, size = self.chain_for(count), self.model.config.block_size
        if chain is None or not self.fixed.slot.fits(self._start, size):
            return None
        self.sent = len(text) * size
        waits, _ = self.fixed.waits(chain, text, count, randomness, at_once=True)
        return WholeTokens(*(x[:, :count] for x in self._drafted(chain, text[:, -1:], waits)))

    def _drafted(self, draft: WholeDraft, newest: Tensor, waits: Tensor | None) -> tuple[Tensor, ...]:
        embeds, positions, masks = self._inputs(newest)
        self.fixed.begin(self._start, embeds.shape[1], prepared=draft in self.fixed.chains)
        positions = positions.expand(len(newest), -1).contiguous()
        return draft(embeds=embeds, positions=positions, masks=masks, waits=waits, cache=self.fixed.slot.cache)


class BlockDrafter(ChainDrafter):
    """Drafts the tokens of a block at once: one forward proposes the laws of all, each whatever the others are."""

    def propose(self, ids: Tensor, layout: Texts | None, remaining: Sequence[int]) -> Draft:
        self.size = min(self.size, self.source.model.longest)  # a schedule would add on, and come back late
        return super().propose(ids, layout, remaining)

    def _draft(self, ids: Tensor, n: int, remaining: Sequence[int]) -> Drafted:
        source, stop, chosen, tokens = self.source, self.stop, [], []
        newest = source.begin(ids)
        if (whole := source.whole(ids, n, self.sampler.randomness, calls=1)) is not None:
            return self._ended(whole.tokens, whole.logits, whole.q, remaining)
        logits, one_by_one = source.logits(newest, n), self.sampler.reads_text
        for part in logits.split(1, dim=1) if one_by_one else [logits]:
            chosen.append(self.sampler(part, ids, tokens, stop is not None))
            tokens.append(chosen[-1][0])
        _, parts, qs = zip(*chosen, strict=True)
        tokens, logits = torch.cat(tokens, dim=1), torch.cat(parts, dim=1)
        return self._ended(tokens, logits, None if stop is None else torch.cat(qs, dim=1), remaining)

    def _ended(self, tokens: Tensor, logits: Tensor, q: Tensor | None, remaining: Sequence[int]) -> Drafted:
        if self.stop is None:
            return tokens, logits, None, ()
        self.stop.begin()
        going = columns_of(Look(self.stop.goes_on(q)).tolist(), remaining)
        return tokens[:, : len(going)], logits[:, : len(going)], None, going


@register
class DFlashKind(StateHeadKind):
    """`assistant_model` is a DFlash head, whose forward drafts a block."""

    head, strategy, runner = DFlash, BlockDrafter, DFlashRunner
