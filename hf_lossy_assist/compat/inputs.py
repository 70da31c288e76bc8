"""The inputs of a model's forward: over a text, and over trees, whose masks show ancestors and positions are depths."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.utils import ModelOutput

from ..core.texts import GrowingTensor, RowShift, counting, ones
from .caches import CACHE, CACHE_NAMES, cache_of, new_cache, text_cache, tokens_in
from .models import SLIDING, device_of, forward_accepts, layer_kinds

TEXT_INPUTS = frozenset({"attention_mask", "position_ids", CACHE, "use_cache", "logits_to_keep"})
"""The inputs of a text-only model besides the tokens."""

WHOLE_OUTPUTS = ("output_hidden_states", "output_attentions")
"""Options that ask a forward for more than logits."""

WITH_TOKENS = TEXT_INPUTS.union(CACHE_NAMES, WHOLE_OUTPUTS)
"""All that a model which reads only tokens may be given with them, a cache by any of its names."""

ROUTING = "output_router_logits"
"""An option that asks a forward for what ``generate()`` does not return."""

_CROSS_MASKS = ("cross_attention_mask", "image_attention_mask")
_TYPES = ("token_type_ids", "mm_token_type_ids")
_IN_LINE_WITH_IDS = ("attention_mask", "position_ids", *_TYPES)


def padding_token(config: GenerationConfig) -> int:
    """Return the padding token of a prepared call; 0 if the model has none."""
    token = getattr(config, "_pad_token_tensor", None)
    return 0 if token is None else int(token)


def ending_tokens(config: GenerationConfig) -> frozenset[int]:
    tokens = config.eos_token_id
    return frozenset() if tokens is None else frozenset(torch.as_tensor(tokens).flatten().tolist())


def without_loss(model: PreTrainedModel) -> dict[str, Any]:
    """Return the input that turns off a loss of experts, which reads a mask as long as the forward, if one is on."""
    config = model.config.get_text_config(decoder=True)
    return {ROUTING: False} if getattr(config, ROUTING, False) else {}


def text_prefix(model: PreTrainedModel) -> str:
    """Return how names of the text's inputs begin; with an encoder, those without a prefix are the encoder's."""
    return "decoder_" if model.config.is_encoder_decoder else ""


class ForwardInputs:
    """Makes the inputs of a target's forwards from what ``generate()`` carries between them.

    Masks, positions and token types are written ahead of the text, and read up to its length.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.with_encoder = model.config.is_encoder_decoder
        self._more = without_loss(model)
        prefix = text_prefix(model)
        self._ids = f"{prefix}input_ids"
        self._mask, self._positions = f"{prefix}attention_mask", f"{prefix}position_ids"
        self._going_on = {self._mask: ones, self._positions: counting}
        self._going_on |= {name: functools.partial(self._next_types, name) for name in _TYPES}
        self._lines: dict[str, tuple[Tensor, GrowingTensor]] = {}

    def of_text(
        self, text: Tensor, carried: dict[str, Any], seen: int, longer: int, keep: int, first: bool
    ) -> dict[str, Any]:
        """Return the inputs of one forward over ``text`` ``(B, L)`` from token ``seen`` on.

        The text is ``longer`` than mask, positions and types in ``carried``, in tokens. Logits are computed for the
        last ``keep`` positions. ``first`` marks a run's first forward.
        """
        kwargs = carried | self._more
        mask = kwargs.get(self._mask)
        for name in _CROSS_MASKS:
            if (values := kwargs.get(name)) is not None:
                whole = tokens_in(cache_of(carried)) + text.shape[1] - seen if mask is None else mask.shape[1] + longer
                kwargs[name] = _with_the_last(values, whole)
        kwargs |= self._longer(carried, longer)
        inputs = self.model.prepare_inputs_for_generation(
            text, next_sequence_length=text.shape[1] - seen if seen else None, is_first_iteration=first, **kwargs
        )
        if "logits_to_keep" in inputs:
            inputs["logits_to_keep"] = keep
        return inputs

    def after(self, outputs: Any, model_kwargs: dict[str, Any], committed: int) -> None:
        """Extend what is carried by ``committed`` tokens: mask, positions, token types, newest cache.

        Updates the same dictionary, as transformers does, since a drafter may have kept it.
        """
        longer = self._longer(model_kwargs, committed)
        if not _as_the_mixin(self.model, "_update_model_kwargs_for_generation"):
            longer = {name: values for name, values in longer.items() if name in _TYPES}
        rest = {name: value for name, value in model_kwargs.items() if name not in longer}
        rest = self.model._update_model_kwargs_for_generation(
            ModelOutput() if outputs is None else outputs,
            rest,
            is_encoder_decoder=self.with_encoder,
            num_new_tokens=committed,
        )
        model_kwargs.update(rest)
        self._carry(model_kwargs, longer)

    def move(self, carried: dict[str, Any], shift: RowShift, ids: Tensor) -> None:
        """Move the inputs that are aligned with ``ids`` ``(B, S)`` along with the rows of a batch."""
        aligned = {*_IN_LINE_WITH_IDS, *_CROSS_MASKS}
        for name, values in carried.items():  # what else has one entry a row
            if isinstance(values, Tensor) and name not in aligned and values.shape[:1] == ids.shape[:1]:
                carried[name] = values.index_select(0, shift.index.to(values.device))
        for name in _IN_LINE_WITH_IDS:
            if (values := carried.get(name)) is not None:
                carried[name] = shift.moved(values, 0)
        for name in _CROSS_MASKS:  # (B, S, …): which images each token sees; later ones see those of the last
            if (values := carried.get(name)) is not None:
                values = _with_the_last(values, ids.shape[1])
                moved = shift.moved(values.flatten(2).permute(2, 0, 1), 0).permute(1, 2, 0)
                carried[name] = moved.reshape(*moved.shape[:2], *values.shape[2:])
        if carried.get("attention_mask") is None and len(set(shift.ends)) > 1:
            carried["attention_mask"] = shift.moved(torch.ones_like(ids), 0)

    def prompt_sees_on(self, carried: dict[str, Any]) -> bool:
        """Tell whether a prompt would see tokens that were read together with it: some attend in both directions."""
        types, masks_of = carried.get("token_type_ids"), getattr(self.model, "create_masks_for_generate", None)
        if types is None or masks_of is None:
            return False
        types = self._line("token_type_ids", types).between(0, types.shape[1] + 1)
        states = torch.empty(*types.shape, 0, dtype=self.model.dtype, device=types.device)
        masks = masks_of(
            config=self.model.config, inputs_embeds=states, attention_mask=None, position_ids=None,
            token_type_ids=types, is_first_iteration=True, **{CACHE: new_cache(self.model)},
        )  # fmt: skip
        masks = [mask for mask in (masks.values() if isinstance(masks, dict) else [masks]) if mask is not None]
        return any(bool((mask if mask.dtype == torch.bool else mask == 0)[..., :-1, -1].any()) for mask in masks)

    def _next_types(self, name: str, values: Tensor, count: int) -> Tensor:
        """Return the types of the next ``count`` tokens: all get the one that plain decoding gives to the next."""
        # Asks about one token, because transformers repeats as many of the last types as there are new tokens.
        asked = self.model._update_model_kwargs_for_generation(
            ModelOutput(), {name: values[:, -1:]}, is_encoder_decoder=self.with_encoder, num_new_tokens=1
        )
        return asked[name][:, -1:].expand(-1, count)

    def _longer(self, model_kwargs: dict[str, Any], count: int) -> dict[str, Tensor]:
        """Return mask, positions and token types, if there are any, for ``count`` more tokens."""
        return {
            name: self._line(name, values).between(0, values.shape[-1] + count)
            for name in self._going_on
            if (values := model_kwargs.get(name)) is not None
        }

    def _line(self, name: str, values: Tensor) -> GrowingTensor:
        """Return the growing tensor that ``values`` were last taken from, or a new one."""
        known, line = self._lines.get(name, (None, None))
        if values is not known:
            line = GrowingTensor(values, self._going_on[name])
            self._lines[name] = values, line
        return line

    def _carry(self, carried: dict[str, Any], longer: Mapping[str, Tensor]) -> None:
        for name, values in longer.items():
            carried[name] = values
            self._lines[name] = values, self._lines[name][1]


def _with_the_last(values: Tensor, length: int) -> Tensor:
    """Return ``(B, L, …)`` values for ``length`` tokens: later ones get those of the last."""
    missing = max(0, length - values.shape[1])
    return torch.cat([values, values[:, -1:].expand(-1, missing, *values.shape[2:])], dim=1)[:, :length]


class PlainForwardInputs(ForwardInputs):
    """The inputs of a model with only tokens, masks and positions, which need nothing but slicing."""

    _copies = True  # a user's hook may keep what the model was given, while the text is overwritten

    def of_text(
        self, text: Tensor, carried: dict[str, Any], seen: int, longer: int, keep: int, first: bool
    ) -> dict[str, Any]:
        inputs, tokens = carried | self._more, text.narrow(1, seen, text.shape[1] - seen)
        if (mask := carried.get(self._mask)) is not None:
            inputs[self._mask] = self._line(self._mask, mask).between(0, mask.shape[-1] + longer)
        if (positions := carried.get(self._positions)) is not None:
            end = positions.shape[-1] + longer
            new = self._line(self._positions, positions).between(end - tokens.shape[1], end)
            inputs[self._positions] = new.clone(memory_format=torch.contiguous_format) if self._copies else new
        inputs[self._ids] = tokens.clone(memory_format=torch.contiguous_format) if self._copies else tokens
        if "logits_to_keep" in carried:
            inputs["logits_to_keep"] = keep
        return inputs

    def after(self, outputs: Any, model_kwargs: dict[str, Any], committed: int) -> None:
        self._carry(model_kwargs, self._longer(model_kwargs, committed))
        if outputs is not None:
            model_kwargs[CACHE] = getattr(outputs, CACHE)

    def move(self, carried: dict[str, Any], shift: RowShift, ids: Tensor) -> None:
        super().move(carried, shift, ids)
        mask = carried.get("attention_mask")
        if mask is not None and "position_ids" not in carried and forward_accepts(self.model, "position_ids"):
            carried["attention_mask"] = mask = mask.to(device_of(self.model))
            carried["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)


class DraftForwardInputs(PlainForwardInputs):
    """The inputs of a draft model, which are views: every one of its steps has a forward."""

    _copies = False


def forward_inputs(model: PreTrainedModel, ids: Tensor, model_kwargs: dict[str, Any]) -> ForwardInputs:
    """Return the maker of inputs for a model's forwards over texts that begin with ``ids``."""
    given = {name for name, value in model_kwargs.items() if value is not None}
    only_sliced = (
        given >= TEXT_INPUTS - {"attention_mask"}
        and given <= TEXT_INPUTS.union(WHOLE_OUTPUTS)
        and _as_the_mixin(model, "prepare_inputs_for_generation")
        and _as_the_mixin(model, "_update_model_kwargs_for_generation")
        and not model.config.is_encoder_decoder
        and not forward_accepts(model, "cache_position")
        and ids.device == device_of(model)
    )
    return PlainForwardInputs(model) if only_sliced else ForwardInputs(model)


def _as_the_mixin(model: PreTrainedModel, method: str) -> bool:
    # Looks at the instance, since PEFT's prompt learning overrides the method there.
    return getattr(getattr(model, method), "__func__", None) is getattr(GenerationMixin, method)


def tokens_before(input_ids: Tensor, model_kwargs: dict[str, Any], config: GenerationConfig, held: int) -> int:
    """Return how many of the tokens that a user's cache has ``held`` are in front of ``input_ids``: all or none.

    A cache that holds just these ids is in front of them, too: transformers reads them a second time.
    """
    return held if held == input_ids.shape[1] or not _repeats_cache(input_ids, model_kwargs, config) else 0


def obstacle_in_tokens(
    input_ids: Tensor, model_kwargs: dict[str, Any], config: GenerationConfig, held: int
) -> str | None:
    """Say why a user's cache, which has ``held`` tokens, can't be gone on from with ``input_ids``; None if it can."""
    given = input_ids.shape[1]
    if held < given or not _repeats_cache(input_ids, model_kwargs, config):
        return None
    if held > given:
        return f"it holds {held} tokens, but `input_ids` only {given}; pass all tokens of the text"
    if model_kwargs.get("attention_mask") is not None:
        return "it holds all of `input_ids`, which would be read twice; leave out the last of them when filling it"
    return None


def _repeats_cache(input_ids: Tensor, model_kwargs: dict[str, Any], config: GenerationConfig) -> bool:
    """Tell whether ``input_ids`` begin with the tokens that a cache holds: if the mask is longer, all ids are new."""
    mask = model_kwargs.get("attention_mask")
    covered = mask.shape[1] if mask is not None else getattr(config, "_mask_length", input_ids.shape[1])
    return covered == input_ids.shape[1]


class TreeInputs:
    """Makes masks and positions of a model's forwards over trees.

    Masks are added to the attention weights as floating-point numbers: eager attention silently misreads booleans.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.dtype = model.dtype
        self._window = getattr(model.config.get_text_config(decoder=True), "sliding_window", None)
        kinds = layer_kinds(model)
        self._layer_of = {kind: kinds.index(kind) for kind in set(kinds)}

    def of_tree(
        self, carried: Mapping[str, Any], width: int, seen: int, ancestors: Tensor, depths: Tensor
    ) -> dict[str, Any]:
        """Return the inputs of one forward over the unread part of texts of ``width`` tokens, and the nodes after them.

        ``carried`` has cache, mask and positions of the texts; tokens beyond them are no padding. The cache holds
        ``seen`` slots of texts and nodes. ``ancestors`` ``(B, m, M)`` says which of all M nodes the last m see; only
        these m are sent. ``depths`` ``(B, M)`` are the nodes' depths, from 1.
        """
        rows, nodes, slots = ancestors.shape
        device, unread = ancestors.device, max(0, width - seen)
        text = torch.arange(width, device=device)
        keys = torch.cat([text.expand(rows, -1), width - 1 + depths], dim=1)
        sees = torch.ones(rows, unread + nodes, width + slots, dtype=torch.bool, device=device)
        sees[:, :unread] = torch.arange(width + slots, device=device) <= text[width - unread :, None]
        sees[:, unread:, width:] = ancestors
        if (mask := carried.get("attention_mask")) is not None:
            there = mask[:, :width].to(device=device, dtype=torch.bool)
            sees[..., : there.shape[1]] &= there[:, None]
        queries = torch.cat([keys[:, width - unread : width], keys[:, keys.shape[1] - nodes :]], dim=1)
        return {
            "attention_mask": self._masks(sees, queries, keys, text_cache(cache_of(carried))),
            "position_ids": self._positions(carried, width, unread, depths[:, slots - nodes :]),
        }

    def _masks(self, sees: Tensor, queries: Tensor, keys: Tensor, cache: Cache) -> Tensor | dict[str, Tensor]:
        masks = {}
        for kind, layer in self._layer_of.items():
            near = sees & (queries[:, :, None] - keys[:, None] < self._window) if kind == SLIDING else sees
            length = sees.shape[2]
            if layer < len(cache.layers):  # a sliding-window layer shows only the end of the text
                length = cache.layers[layer].get_mask_sizes(sees.shape[1])[0]
            hidden = ~near[:, None, :, max(0, sees.shape[2] - length) :]
            if length > sees.shape[2]:  # the empty slots of a static cache
                hidden = pad(hidden, (0, length - sees.shape[2]), value=True)
            mask = torch.zeros(hidden.shape, dtype=self.dtype, device=sees.device)
            masks[kind] = mask.masked_fill_(hidden, torch.finfo(self.dtype).min)
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def of_token(self, mask: Tensor, cache: Cache) -> Tensor | dict[str, Tensor]:
        """Return the masks of a forward over one token, which sees what a mask ``(B, L)`` shows.

        transformers would ask of the mask itself, in every forward, whether it hides anything; it need not read these.
        """
        sees, masks = mask.bool()[:, None, None], {}
        for kind, layer in self._layer_of.items():
            near, length = sees, sees.shape[-1]
            if kind == SLIDING and self._window < length:
                near = near.clone()
                near[..., : length - self._window] = False
            if layer < len(cache.layers):
                length = min(length, cache.layers[layer].get_mask_sizes(1)[0])
            masks[kind] = near[..., near.shape[-1] - length :]
        return masks if len(masks) > 1 else next(iter(masks.values()))

    @staticmethod
    def _positions(carried: Mapping[str, Any], width: int, unread: int, depths: Tensor) -> Tensor:
        positions, mask = carried.get("position_ids"), carried.get("attention_mask")
        if positions is None and mask is not None:
            positions = (mask.cumsum(-1) - 1).clamp(min=0)
        if positions is None:
            positions = torch.arange(width, device=depths.device)[None]
        positions = positions.to(depths.device)
        if (missing := width - positions.shape[1]) > 0:
            more = torch.arange(1, missing + 1, device=depths.device)
            positions = torch.cat([positions, positions[:, -1:] + more], dim=1)
        newest = positions[:, width - 1 : width] + depths
        unread_text = positions[:, width - unread : width].expand(len(depths), -1)
        return torch.cat([unread_text, newest], dim=1)
