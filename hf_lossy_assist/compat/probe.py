"""Asks a model, by a few short forwards, which of plain decoding's forwards it can run in one, and says what it can't.

Plain decoding reads one token a forward behind a cache that only grows, and a row's padding stays where it is. We read
drafts, whole or as trees, behind a cache that was rolled back, and rows of a batch change columns. Models differ in
what of this they bear, whatever their classes say.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.modeling_outputs import BaseModelOutput

from .caches import CacheSnapshot, cache_name, new_cache, text_cache, tokens_in
from .inputs import TEXT_INPUTS, WHOLE_OUTPUTS, ForwardInputs, TreeInputs
from .kernels import FOLDED
from .models import FULL, MASKED_ATTENTION, SLIDING, device_of, forward_accepts, has_recurrent_state, layer_kinds

_READ, _MORE, _PADDING = 10, 3, 2
_COMPRESSED, _IN_BLOCKS = {"compressed_sparse_attention", "heavily_compressed_attention"}, {"minimax_m3_sparse"}
"""Kinds of layers that choose keys by columns: a short text tells no difference, or a smaller one than rounding."""
_STATES = ("conv_states", "recurrent_states")
# The second node of the tree is on another path than the others, so these are one column too far.
_TREE = torch.tensor([[[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]]).bool(), torch.tensor([[1, 1, 2, 3]])
_EXACT, _FINE, _COARSE = 1e-5, 1e-3, 0.15
_REPEATED = 0.02
"""How far logits may be where the same forwards run again."""
_TOLD = {
    "moshi": "its cache applies a sliding window that its masks leave out",
    "cpmant": "its tokens attend to later ones of one forward",
}
"""What no short text tells, or none in half precision: why models read tokens otherwise than one by one."""


@dataclass(frozen=True)
class Answers:
    """What a model bears.

    Attributes
    ----------
    one, several
        Whether it goes on correctly from a cache that holds its text: with one token a forward, and with several.
    at_first
        Whether it reads a prompt and a draft in one forward: some let a prompt's tokens see later ones.
    padded
        Whether it does so with several behind padding, too.
    free
        Whether padding changes nothing in plain decoding.
    moves
        Whether a row that it has read may move to other columns.
    trees
        Whether it reads trees.
    recurrent
        Whether it keeps a state that can't be rolled back.
    """

    one: bool
    several: bool
    at_first: bool
    padded: bool
    free: bool
    moves: bool
    trees: bool
    recurrent: bool


@dataclass
class _Encoded(BaseModelOutput):
    """An encoder's states, with the other field that decoders with experts look at."""

    router_logits: Any = None


_of_models: weakref.WeakKeyDictionary[PreTrainedModel, dict[Hashable, Answers]] = weakref.WeakKeyDictionary()
_of_kinds: dict[Hashable, Answers] = {}


def ask(model: PreTrainedModel) -> Answers:
    """Return what a model bears; each class with a configuration is asked once."""
    attention = model.config._attn_implementation
    kind = "sdpa" if attention == FOLDED else attention, model.dtype, model.device.type
    own = _of_models.setdefault(model, {})
    if kind not in own:
        key = type(model), json.dumps(model.config.to_dict(), sort_keys=True, default=str), *kind
        if key not in _of_kinds:
            _of_kinds[key] = _asked(model)
        own[kind] = _of_kinds[key]
    return own[kind]


@torch.no_grad()
def _asked(model: PreTrainedModel) -> Answers:
    recurrent = has_recurrent_state(model)
    with torch.autocast(device_of(model).type, enabled=False), _without_dropout(model):
        try:
            plain = _Reading(model)
        except Exception:  # a model that goes on in no way may fail in any way
            # Code of a model's own for attention and masks may want one token at a time behind a cache.
            known = model._supports_sdpa or model._supports_attention_backend or model._can_compile_fullgraph
            own = recurrent or not known
            return Answers(not own, not own, True, True, True, forward_accepts(model, "position_ids"), False, recurrent)
        one, several, cropped = plain.goes_on, plain.reads_several, not recurrent
        at_first, padded, free = _behind_padding(model, plain) if one or several else (False, False, False)
        kinds = set(layer_kinds(model))
        at_first, padded = at_first and not kinds & _COMPRESSED, padded and not kinds & (_COMPRESSED | _IN_BLOCKS)
        trees = several and cropped and plain.reads_trees  # before the row moves
        return Answers(one, several, at_first, padded, free, several and cropped and plain.moves, trees, recurrent)


@torch.no_grad()
def failure(model: PreTrainedModel) -> Exception | None:
    """Return what a model's short forwards raise; None where they run."""
    try:
        with torch.autocast(device_of(model).type, enabled=False), _without_dropout(model):
            _Reading(model)
    except Exception as error:  # a model's code may fail in any way
        return error
    return None


@contextmanager
def _without_dropout(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


class _Reading:
    """Forwards of a model over tokens of one text, behind a cache that always goes back to the same place."""

    def __init__(self, model: PreTrainedModel, padding: int = 0) -> None:
        size = model.config.get_text_config(decoder=True).vocab_size
        self.model, self.start, self.end = model, padding + _READ, padding + _READ + _MORE
        text = torch.arange(1 - padding, _READ + _MORE + 1, device=device_of(model)) * 37 % size
        self.ids, self.bound = text[None], _bound(model)
        self.mask = (torch.arange(self.end, device=text.device) >= padding).long()[None]
        self.inputs, self.holder, self.encoder = ForwardInputs(model), new_cache(model), {}
        if model.config.is_encoder_decoder:
            width = getattr(model.get_encoder(), "config", model.config).hidden_size
            states = torch.ones(1, 1, width, dtype=model.dtype, device=text.device)
            self.encoder = {"encoder_outputs": _Encoded(states)}
        self.whole = None if has_recurrent_state(model) else self._logits(self.ids, 0)[-_MORE:]
        self.holder = new_cache(model)
        self.cache = text_cache(self.holder)
        self._logits(self.ids[:, : self.start], 0)
        self.snapshot = CacheSnapshot(self.cache)
        self.reference = self.one_by_one()  # as in plain decoding

    def _carried(self, end: int) -> dict[str, Any]:
        carried = {cache_name(self.model): self.holder, "use_cache": True, **self.encoder}
        if not self.encoder:
            carried["attention_mask"] = self.mask[:, :end]
        if forward_accepts(self.model, "position_ids"):
            carried["position_ids"] = (self.mask.cumsum(-1) - 1).clamp(min=0)[:, :end]
        return carried

    def _logits(self, ids: Tensor, start: int, overrides: Mapping[str, Any] | None = None) -> Tensor:
        count = ids.shape[1] - start
        given = self.inputs.of_text(ids, self._carried(ids.shape[1]), start, 0, count, first=not start)
        # Hooks on the model itself are the user's, and this is none of his forwards.
        return self.model.forward(**given | (overrides or {}), return_dict=True).logits[0, -count:]

    def is_like(self, logits: Tensor, most: float = 1.0) -> bool:
        """Tell whether logits are those of one token a forward, but for rounding."""
        reference = self.reference
        if reference.isnan().any():  # some kernels make no numbers of padding
            return bool(logits.isnan().any())
        # The median, since rounding can change the choice of experts at one position.
        error = (logits - reference).float().norm(dim=-1) / reference.float().norm(dim=-1).clamp(min=1e-6)
        return error.median().item() < min(most, self.bound)

    def one_by_one(self) -> Tensor:
        self.snapshot.restore(self.cache)
        return torch.cat([self._logits(self.ids[:, : i + 1], i) for i in range(self.start, self.end)])

    def together(self, without: str | None = None) -> Tensor:
        self.snapshot.restore(self.cache)
        for layer in self.cache.layers:
            for state in getattr(layer, without or "", {}).values():
                if state is not None:
                    state.zero_()
        return self._logits(self.ids, self.start)

    @cached_property
    def goes_on(self) -> bool:
        if has_recurrent_state(self.model):  # which may be kept outside the cache
            return self.is_like(self.one_by_one(), _REPEATED)
        self.snapshot.restore(self.cache)
        return tokens_in(self.cache) == self.start

    @cached_property
    def reads_several(self) -> bool:
        try:
            read = self.together()
            kinds = [kind for kind in _STATES if any(_filled(layer, kind) for layer in self.cache.layers)]
            ignored = any(torch.equal(self.together(without=kind), read) for kind in kinds)
        except Exception:  # models without support fail in any way
            return False
        return not ignored and self.is_like(read)

    @property
    def reads_at_first(self) -> bool:
        return self.whole is None or self.is_like(self.whole)

    @property
    def reads_trees(self) -> bool:
        self.snapshot.restore(self.cache)
        first, others = self.ids[:, : self.start + 1], self.ids[:, self.start + 1 :]
        ancestors, depths = (x.to(self.ids.device) for x in _TREE)
        carried = self._carried(self.start)
        try:
            inputs = TreeInputs(self.model).of_tree(carried, self.start, self.start, ancestors, depths)
            read = self._logits(torch.cat([first, self.ids[:, :1], others], dim=1), self.start, inputs)
        except Exception:
            return False
        return self.is_like(read[[0, 2, 3]])

    @property
    def moves(self) -> bool:
        """Tell whether the row may move to other columns; it stays there."""
        self.snapshot.restore(self.cache)
        self.start, self.ids, self.mask = self.start + _PADDING, *(pad(x, (_PADDING, 0)) for x in (self.ids, self.mask))
        try:
            for layer in self.cache.layers:
                if isinstance(layer, DynamicLayer) and layer.is_initialized:
                    layer.keys, layer.values = (pad(x, (0, 0, _PADDING, 0)) for x in (layer.keys, layer.values))
            return self.is_like(self._logits(self.ids, self.start))
        except Exception:
            return False


def _behind_padding(model: PreTrainedModel, plain: _Reading) -> tuple[bool, bool, bool]:
    """Tell whether prompts are read with drafts, padded rows as plain decoding does, and that as without padding."""
    if model.config.is_encoder_decoder:
        return plain.reads_at_first, True, False  # whose prompts have no padding of their own
    try:
        row = _Reading(model, _PADDING)
        at_first = plain.reads_at_first and row.reads_at_first
        return at_first, row.reads_several, plain.is_like(row.reference)
    except Exception:
        return plain.reads_at_first, False, False


def _filled(layer: Any, kind: str) -> bool:
    return any(state is not None for state in getattr(layer, kind, {}).values())


def _bound(model: PreTrainedModel) -> float:
    """Return how far logits may be from others whose sums run in another order, by what rounds."""
    types = {parameter.dtype for parameter in model.parameters()}
    rounds_inputs = any(getattr(module, "rounds_inputs", False) for module in model.modules())
    if rounds_inputs or getattr(model, "hf_quantizer", None) is not None or types - {torch.float32, torch.float64}:
        return _COARSE
    return _FINE if torch.float32 in types else _EXACT


def obstacle_to_rollback(model: PreTrainedModel, several: bool) -> str | None:
    """Say why a model can't go on from a cache that was rolled back, or a state that was restored; None if it can.

    ``several`` requires that it then read several tokens in one forward, as a target does.
    """
    name, config = type(model).__name__, model.config.get_text_config(decoder=True)
    if not model._supports_default_dynamic_cache():
        return f"{name} keeps its state outside transformers' caches, where it can't be restored"
    reason = _TOLD.get(config.model_type)
    if getattr(config, "recurrent_kv_cache_mode", None) == "last_loop":
        reason = "its first loops see the tokens of one forward otherwise than earlier ones (`recurrent_kv_cache_mode`)"
    if reason is not None:
        return f"{name} can read only one token behind its cache: {reason}"
    bears = ask(model)
    recurrent = bears.recurrent
    if (bears.one or (several and not recurrent)) and (bears.several or (recurrent and not several)):
        return None
    if recurrent and bears.one:
        return f"{name} keeps a recurrent state, and can't resume from it in a forward over several tokens"
    if recurrent:
        return f"{name} keeps a recurrent state, which can't be restored from its cache alone"
    if getattr(model.config, "is_decoder", None) is False and not model.config.is_encoder_decoder:
        return (
            f"{name} lets tokens attend to later ones, as `is_decoder` of its configuration is False; load it with "
            "`is_decoder=True`"
        )
    if not (bears.one or several):
        return f"{name} keeps no cache that holds just its text"
    return f"{name} can read only one token behind its cache"


def shares_forwards(model: PreTrainedModel) -> bool:
    """Tell whether rows of a batch can be read together: one that falls behind moves to other columns."""
    crosses = getattr(model.config, "add_cross_attention", False)  # whose keys don't move with the text's
    return ask(model).padded and ask(model).moves and not crosses


def obstacle_to_padding(model: PreTrainedModel, of_batch: bool) -> str | None:
    """Say why a model can't read drafts where a token's column is not its position; None where it can.

    A row ``of_batch`` may leave its padding out.
    """
    bears = ask(model)
    if model.config.is_encoder_decoder or (of_batch and bears.free and bears.recurrent):
        return None
    if bears.padded:
        return None
    return f"{type(model).__name__} then reads several tokens in one forward otherwise than one after another"


def obstacle_to_trees(model: PreTrainedModel, inputs: Mapping[str, Any]) -> str | None:
    """Say why a model with these ``inputs`` besides tokens can't run over trees; None if it can."""
    name, config = type(model).__name__, model.config.get_text_config(decoder=True)
    if model.config.is_encoder_decoder:
        return f"{name} has an encoder"
    if has_recurrent_state(model):
        return f"{name} keeps a recurrent state, which goes along one path only"
    if (attention := model.config._attn_implementation) not in MASKED_ATTENTION:
        return f"{attention!r} attention takes no mask of ancestors; load {name} with 'sdpa'"
    kinds = set(layer_kinds(model))  # a short text does not tell the difference
    if (other := sorted(kinds - {FULL, SLIDING})) or getattr(config, "attention_layers", None) is not None:
        return f"{name} has layers whose attention is {', '.join(other) or 'local'}"
    if not (forward_accepts(model, "position_ids") and ask(model).trees and ask(model).at_first):
        return f"{name} takes no masks of ancestors with depths as positions"
    others = [key for key, value in inputs.items() if value is not None and value is not False]
    if unknown := sorted(set(others) - TEXT_INPUTS.union(WHOLE_OUTPUTS)):
        return f"{name} reads {', '.join(map(repr, unknown))} besides tokens"
    positions = inputs.get("position_ids")
    return None if positions is None or positions.dim() == 2 else f"the positions of {name} are not one per token"
