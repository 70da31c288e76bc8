"""Chooses a call's runners: on static caches where these are wanted and possible, else on dynamic ones."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import PreTrainedModel
from transformers.cache_utils import StaticCache

from .. import compat
from ..compat import belongs_to_user
from ..drafting.dflash import DFlash
from ..drafting.dflash_static import StaticDFlashForwards
from ..drafting.eagle3 import Eagle3
from ..drafting.eagle3_static import StaticEagle3Forwards
from ..drafting.model import NO_END, mask_of
from ..drafting.mtp import Mtp
from ..drafting.tree import MOST
from ..drafting.vocabulary import Vocabulary, vocabulary_of, vocabulary_sizes
from ..errors import LossyUnsupportedError, warn_once
from ..models.prepacked import is_prepacked
from ..models.processing import settings_of
from ..models.quantised import can_be_compiled, dtype_of
from ..models.recurrent import RecurrentRunner, padding_before
from ..models.runner import DynamicCacheRunner, ModelRunner
from ..models.static.cache_slot import StaticCacheSlot, new_static_cache, rewinds, take_slot
from ..models.static.fixed_runner import FixedRunner, Shapes, TokenChoice
from ..models.static.forwards import Compiling, decoder_layers, forget, has_replaced_forward, path_to_decoder
from ..models.static.graphs import RECORDERS, CompiledRecording, Recording
from ..models.static.layerwise import compiling
from ..models.static.runner import StaticCacheRunner
from .config import LossyConfig
from .drafter_choice import DrafterChoice
from .path_choice import Path, choose_path
from .prepared import Prepared

_ANY_WIDTH = (8, 16, 40)
_AUTOMATIC_TREES = (17, 33, 65, MOST + 1)
# After a draft that was kept whole, a round's first forward is over two tokens; all others are over one.
_DRAFT_WIDTHS = (1, 2)
_LOOKUP = {"prompt_lookup_num_tokens"}
_OF_STATES = {Eagle3: StaticEagle3Forwards, Mtp: StaticEagle3Forwards, DFlash: StaticDFlashForwards}


Runners = tuple[ModelRunner, Callable[[], ModelRunner] | None]
"""The target's runner, and what makes the draft model's; None where the drafter makes its own."""


def choose_runners(
    model: PreTrainedModel,
    config: LossyConfig,
    choice: DrafterChoice,
    call: Prepared,
    switch: compat.FrequencySwitch | None,
) -> Runners:
    """Return the runners of a call, as :func:`choose_path` says; ``switch`` says where frequencies change.

    A static cache of the call's own that can't be used gives way to a dynamic one; for a caller's cache this is an
    error. Only what the user has asked for is warned of.
    """
    runners = _RunnerChoice(model, config, choice, call)
    return runners.static(switch) or (runners.dynamic(), None)


@dataclass(frozen=True, eq=False)
class _RunnerChoice:
    """Makes a call's runners."""

    model: PreTrainedModel
    config: LossyConfig
    choice: DrafterChoice
    call: Prepared

    @cached_property
    def _cache(self) -> Any:
        return compat.cache_of(self.call.inputs)

    @cached_property
    def _before(self) -> int:
        """How many tokens the caller's cache holds before the prompt."""
        return compat.tokens_before(self.call.ids, self.call.inputs, self.call.config)

    @property
    def _seen(self) -> int:
        """How many of the prompt's tokens the caller's cache holds."""
        return 0 if self._before else compat.tokens_in(self.call.inputs)

    @cached_property
    def _last_position(self) -> torch.Tensor | None:
        """``(…, B, 1)`` the highest position that a batch's texts can reach; None for one text, or where none is given.

        A caller's own positions may be higher than the text is long, and a video's times than the text after it.
        """
        positions = self.call.inputs.get("position_ids")
        if self.call.batch == 1 or positions is None:
            return None
        last = positions[..., -1:] + (min(self.call.config.max_length, NO_END) - self.call.ids.shape[1])
        return last.maximum(positions.amax(-1, keepdim=True))

    def dynamic(self) -> ModelRunner:
        """Return the target's runner on a dynamic cache, or with saved states."""
        model, call = self.model, self.call
        inputs, length = compat.forward_inputs(model, call.ids, call.inputs), call.ids.shape[1]
        positions = call.inputs.get("position_ids")
        if positions is not None and (missing := self._before + length - positions.shape[-1]) > 0:
            call.inputs["position_ids"] = pad(positions, (missing, 0))  # of the tokens before, which nobody reads
        if compat.has_recurrent_state(model):
            keeps_cache = belongs_to_user(self._cache) or bool(call.config.return_dict_in_generate)
            # Padding of a prompt alone may be part of the text, so only rows of a batch skip it.
            skips = call.of_batch and compat.ask(model).free
            padding = padding_before(call.inputs.get("attention_mask")) if skips else 0
            return RecurrentRunner(inputs, call.inputs, length, self._seen, padding=padding, keeps_cache=keeps_cache)
        return DynamicCacheRunner(inputs, call.inputs, length, self._seen, self._last_position, self._before)

    def static(self, switch: compat.FrequencySwitch | None) -> Runners | None:
        """Return runners on static caches; None where these are impossible or not wanted."""
        model, call, cache = self.model, self.call, self._cache
        given = isinstance(compat.text_cache(cache), StaticCache)
        path = choose_path(
            compat.device_of(model).type,
            self.config.compile,
            static=given,
            by_itself=given and compat.compiles_by_itself(model, call.inputs, call.config),
            disabled=bool(call.config.disable_compile),
            tokens=call.config.max_length - call.ids.shape[1],
            slots=call.batch * call.config.max_length,
            recording=RECORDERS,
        )
        if path is Path.DYNAMIC:
            return None
        asked = self.config.compile or given
        obstacle = self._obstacle()
        if obstacle is None and switch is not None:
            obstacle = "its frequencies change with the width of a forward"
        if obstacle is not None:
            if given and belongs_to_user(cache):
                raise LossyUnsupportedError(
                    f"`{compat.CACHE}` is a static cache, but {obstacle}; pass a DynamicCache, or leave it out"
                )
            call.inputs[compat.cache_name(model)] = compat.new_cache(model, like=cache) if given else cache
            if asked:
                _say(given, obstacle)
            return None
        target = self._target(given)
        if path is not Path.STATIC and self._failed(target, path, self._of_target, asked) and not given:
            return None
        return target, self._draft(path, asked) if target.fixed else None

    def _target(self, given: bool) -> StaticCacheRunner:
        """Return the target's runner, on the caller's static cache or on one of the pool's."""
        model, call, cache, own = self.model, self.call, self._cache, belongs_to_user(self._cache)
        needed, head = call.config.max_length + self._of_target.room, self.choice.drafts_from_states
        slot = StaticCacheSlot(cache, int(cache.get_seq_length())) if own else take_slot(model, needed, call.batch)
        reads = self.choice.assistant_model.layers_of(model) if head else ()
        runner = StaticCacheRunner(model, slot, call.inputs, self._seen, self._last_position, tuple(reads))
        returned = call.batch == 1 and bool(call.config.return_dict_in_generate)
        runner.keeps_cache = own or (returned and given)
        runner.copies_cache = returned and not runner.keeps_cache
        return runner

    def _draft(self, path: Path, asked: bool) -> Callable[[], ModelRunner] | None:
        """Return what makes the draft's runner; None where it drafts on a dynamic cache, or is no model."""
        draft, call = self.choice.assistant_model, self.call
        if self.choice.drafts_from_states:
            apart = draft.embeddings(self.model).device != draft.device
            obstacle = f"{draft.title} is not where the target's embeddings are" if apart else None
        elif self.choice.drafts_with_model:
            obstacle = _obstacle_to_static(draft) or (_obstacle_to_filling(draft) if self.call.batch > 1 else None)
            if draft.get_input_embeddings() is self.model.get_input_embeddings():
                obstacle = "the draft is a part of the target, and new in every call"
        else:
            return None
        if obstacle is not None:
            if asked:
                _say(False, obstacle)
            return None
        shapes, mask = self._of_draft(), mask_of(call.ids, call.inputs)
        slot = take_slot(draft, call.config.max_length + shapes.room, call.batch)
        if self.choice.drafts_from_states:
            runner = _OF_STATES[type(draft)](draft, self.model, mask, slot)
        else:
            last = None if call.batch == 1 else torch.tensor([[call.config.max_length - 1]])
            runner = StaticCacheRunner(draft, slot, {"attention_mask": mask}, last_position=last)
        return None if self._failed(runner, path, shapes, asked) else lambda: runner

    @cached_property
    def _of_target(self) -> Shapes:
        """What the target verifies: the drafted tokens and the token before them."""
        tree, longest = self.config.tree, self.choice.longest
        if tree is None:
            widths = _ANY_WIDTH if longest is None else (longest + 1,)
            return Shapes(widths, room=widths[-1])
        most = min(MOST if tree.nodes == "auto" else tree.nodes, tree.candidates) + 1
        trees = (*(x for x in _AUTOMATIC_TREES if x < most), most) if tree.nodes == "auto" else (most,)
        return Shapes(trees=trees, room=trees[-1])

    def _of_draft(self) -> Shapes:
        """Return what drafting reads: the newest tokens, then a token, the nodes of a depth, or nothing."""
        choice, tree = self.choice, self.config.tree
        longest, from_states = choice.longest, choice.drafts_from_states
        if tree is not None:
            deeper, newest = tree.depth - 1, tree.depth + 1  # depths whose nodes are read; all that a round committed
            sizes = [tree.top_k] * deeper
            widths, room = ((newest, *sizes), ()) if from_states else ((newest,), tuple(sizes)), newest + sum(sizes)
            return Shapes(*widths, room=room)
        # A head on states reads all that a round has committed. A model has read it as a draft, but for its last token.
        # Nor has a model read what was looked up.
        newest = () if longest is None or not (from_states or choice.looked_up) else (longest + 1,)
        steps, blocks = _DRAFT_WIDTHS, ()
        if from_states:  # a block has the text's newest token, too
            most = choice.assistant_model.longest
            steps, blocks = ((1,), ()) if most is None else ((), (most + 1,))
        way = self._way(None if from_states else vocabulary_of(self.model, choice.assistant_model))
        room = max((*steps, *newest, 0 if way is None else longest + 1)) + sum(blocks)
        if way is None:
            return Shapes(steps + newest, blocks, room=room)
        return Shapes(newest, drafts=choice.num_assistant_tokens, choice=way, room=room)

    def _way(self, vocabulary: Vocabulary | None) -> TokenChoice | None:
        """Return how whole drafts choose their tokens; None where each token is drafted alone."""
        choice, call = self.choice, self.call
        settings = settings_of(call.processors)
        alone = choice.longest is None or choice.stop is not None or choice.confidence or settings is None
        if alone or "draft_hidden" in self.config.rule.needs:
            return None
        draft = choice.assistant_model  # hooks, such as those that time forwards, see each token
        if any(
            compat.has_hooks(x) for x in (draft, draft.get_decoder(), draft.get_output_embeddings()) if x is not None
        ):
            return None
        drawn = vocabulary_sizes(self.model)[0] if call.config.do_sample else 0
        return TokenChoice(drawn, call.processors, settings, vocabulary)

    def _obstacle(self) -> str | None:
        """Say why the target's cache can't be static; None where it can."""
        model, call, choice, cache = self.model, self.call, self.choice, self._cache
        if model.config.is_encoder_decoder:
            return f"{type(model).__name__} has an encoder"
        if compat.is_offloaded_cache(cache):
            return "it is offloaded"
        if self.config.rule.unverified_drafting is not None:
            return f"the rule {self.config.rule.name!r} drafts any number of tokens"
        ours = choice.num_assistant_tokens == 0 or choice.drafts_with_model or choice.drafts_from_states
        if not (ours or choice.translation is not None or set(choice.options) == _LOOKUP):
            return "its drafter may want to see the target's inputs and outputs"
        if belongs_to_user(cache) and not isinstance(cache, StaticCache):
            return f"`{compat.CACHE}` is a {type(cache).__name__}"
        if self._before:
            return "`input_ids` lacks the tokens that it holds, or new ones after them (the whole text works)"
        if belongs_to_user(cache) and not rewinds(cache):
            return f"it has layers that can't be rolled back by position ({_kinds_of(cache)})"
        room = call.config.max_length + self._of_target.room
        if belongs_to_user(cache) and self.config.tree is not None and StaticCacheSlot(cache).capacity < room:
            return f"trees need {room} slots, and it has fewer"
        if call.batch > 1 or choice.drafts_from_states:
            obstacle = _obstacle_to_filling(model)
            if obstacle is not None:
                return obstacle
        if choice.drafts_from_states and (decoder_layers(model) is None or "forward" in vars(model.get_decoder())):
            return f"the states between the layers of {type(model).__name__} can't be returned"
        return _obstacle_to_static(model) or _obstacle_to_inputs(call)

    def _ways(self, runner: FixedRunner, path: Path) -> list[Compiling | Recording]:
        """Return how forwards may be prepared, the best way first: what is compiled is recorded, too, if it can be."""
        given, recorder = self.call.config.compile_config, RECORDERS.get(runner.device.type)
        if path is not Path.COMPILED:
            return [Recording(recorder)]
        # Graphs refer to their cache, and so would keep a cache that is the caller's. Where a device waits for Python,
        # what no graph records is compiled whole: Python runs between layers.
        records_itself = given is not None and given.backend == "cudagraphs"
        if runner.keeps_cache or records_itself or _obstacle_to_recording(runner.model, self.call) is not None:
            return [(compiling if recorder is None else Compiling)(given)]
        return [CompiledRecording(recorder, given), Compiling(given)]

    def _failed(self, runner: FixedRunner, path: Path, shapes: Shapes, asked: bool) -> bool:
        """Compile or record a model's forwards; tell whether that is impossible, which is warned of."""
        name = type(runner.model).__name__
        filled = f"`{compat.CACHE}` holds tokens already, which compiling would overwrite"
        obstacle = (
            _obstacle_to_compiling(runner.model)
            or (_obstacle_to_recording(runner.model, self.call) if path is not Path.COMPILED else None)
            or (filled if runner.slot.filled else None)
        )
        if obstacle is not None:
            if asked:
                _say(False, obstacle)
            return True
        for how in self._ways(runner, path):
            try:
                runner.prepare(how, shapes)
                return False
            except Exception as error:  # whatever a compiler, a backend or a model's code may raise
                runner.forget()
                forget(runner.model)
                if how.records and not isinstance(error, torch.OutOfMemoryError):  # which may pass
                    _UNRECORDABLE.add(runner.model)
                reason = " ".join(str(error).strip().split("\n")[:2])
                what = "recorded as graphs" if how.records else "compiled"
                _say(False, f"{name} can't be {what} ({type(error).__name__}: {reason})", not how.records)
        return True


def _say(static: bool, obstacle: str, compiles: bool = True) -> None:
    what = "a static cache" if static else "`compile` in `lossy_config`" if compiles else "recording graphs"
    warn_once(f"{what} has no effect here: {obstacle}. Decoding goes on without it.")


def _obstacle_to_static(model: PreTrainedModel) -> str | None:
    """Say why a model can't run on a static cache; None where it can."""
    name = type(model).__name__
    attention = compat.attention_of(model)
    if attention not in compat.MASKED_ATTENTION:
        return f"{attention!r} attention looks at empty slots of a static cache; load {name} with 'sdpa'"
    if not compat.supports_static_cache(model):
        return f"{name} does not support static caches"
    if not compat.ask(model).at_first:
        return f"{name} has to read a prompt without a draft behind it"
    for parameter in ("position_ids", "logits_to_keep"):
        if not compat.forward_accepts(model, parameter):
            return f"the forward of {name} takes no `{parameter}`"
    if not rewinds(cache := new_static_cache(model, 8)):
        return f"{name} has layers that can't be rolled back by position ({_kinds_of(cache)})"
    return None


def _kinds_of(cache: Any) -> str:
    return ", ".join(sorted({type(layer).__name__ for layer in cache.layers}))


def _obstacle_to_filling(model: PreTrainedModel) -> str | None:
    """Say why the decoder's inputs can't be filled up where rows have ended; None where they can."""
    name = type(model).__name__
    if path_to_decoder(model) is None:
        return f"the decoder of {name} is no module of its own, so its inputs can't be filled up"
    if has_replaced_forward(model):
        return f"the forward of {name} has been replaced, as accelerate's hooks do, so rows that have ended stay in it"
    return None


def _obstacle_to_inputs(call: Prepared) -> str | None:
    """Say which option or input of a call static caches do not support; None if they support all."""
    for name in compat.WHOLE_OUTPUTS:
        if getattr(call.config, name, False):
            return f"`{name}` is set"
    for name, value in call.inputs.items():
        if name not in compat.TEXT_INPUTS and value is not None and value is not False:
            return f"the model has the input `{name}`"
    positions = call.inputs.get("position_ids")
    return None if positions is None or positions.shape == call.ids.shape else "its positions are not one per token"


_UNRECORDABLE: weakref.WeakSet[PreTrainedModel] = weakref.WeakSet()
"""Models whose recording failed; another try would fail, too."""


def _obstacle_to_recording(model: PreTrainedModel, call: Prepared) -> str | None:
    """Say why graphs of a model can't be recorded; None where they can. What runs in Python is not in a graph."""
    name = type(model).__name__
    device = compat.device_of(model).type
    if device not in RECORDERS or len({*getattr(model, "hf_device_map", {}).values()}) > 1:
        return f"graphs can't be recorded where {name} is"
    if model in _UNRECORDABLE:
        return f"recording {name} failed before"
    if torch.is_autocast_enabled(device):
        return "autocast makes copies of the weights, which end with it"
    if call.synced_gpus or compat.is_sharded(model):
        return f"{name} is spread over processes"
    decoder, head = model.get_decoder() or model, model.get_output_embeddings()
    inside = [x for x in decoder.modules() if not isinstance(x, PreTrainedModel) and x not in (decoder, head)]
    if any(map(compat.has_hooks, inside)):
        return f"hooks watch layers of {name}, and would not be called"
    if any(hasattr(x, "active_adapters") for x in inside):
        return f"{name} has adapters, which may change"
    if compat.changes_frequencies(model):
        return f"the frequencies of {name} depend on the text's length"
    return None


def _obstacle_to_compiling(model: PreTrainedModel) -> str | None:
    """Say why a model on a static cache can't be compiled; None where it can."""
    name = type(model).__name__
    if (quantizer := getattr(model, "hf_quantizer", None)) is not None and not quantizer.is_compileable:
        return f"the quantisation of {name} can't be compiled"
    if not can_be_compiled(model):
        return f"the kernels that {name} was quantised to {dtype_of(model)} for can't be compiled"
    if is_prepacked(model):
        return f"{name} is prepacked, which does as much for it on a CPU"
    places = {str(place) for place in getattr(model, "hf_device_map", {}).values()}
    if len(places) > 1 and places & {"cpu", "disk"}:
        return f"parts of {name} are offloaded"
    if has_replaced_forward(model) or "forward" in vars(model.get_decoder()):
        return f"the forward of {name} has been replaced, as accelerate's hooks do"
    return None
