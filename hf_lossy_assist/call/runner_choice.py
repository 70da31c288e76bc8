"""Chooses a call's runners: on static caches where these are wanted and possible, else on dynamic ones."""

from __future__ import annotations

from collections.abc import Callable

from transformers import PreTrainedModel
from transformers.cache_utils import StaticCache

from .. import compat
from ..acceptors import Acceptor
from ..compat import belongs_to_user
from ..drafting.model import mask_of
from ..errors import LossyUnsupportedError, warn_once
from ..models.prepacked import is_prepacked
from ..models.quantised import dtype_of
from ..models.recurrent import RecurrentRunner, padding_before
from ..models.runner import DynamicCacheRunner, ModelRunner
from ..models.static.cache_slot import StaticCacheSlot, new_static_cache, rewinds, take_slot
from ..models.static.forwards import forget, path_to_decoder
from ..models.static.runner import StaticCacheRunner
from .drafter_choice import DrafterChoice
from .prepared import Prepared

_ANY_WIDTH = (8, 16, 40)
# After a draft that was kept whole, a round's first forward is over two tokens; all others are over one.
_DRAFT_WIDTHS = (1, 2)
_LOOKUP = {"prompt_lookup_num_tokens"}


Runners = tuple[ModelRunner, Callable[[], ModelRunner] | None]
"""The target's runner, and what makes the draft model's; None where the drafter makes its own."""


def choose_runners(
    model: PreTrainedModel,
    compile: bool | None,
    acceptor: Acceptor,
    choice: DrafterChoice,
    call: Prepared,
    switch: compat.FrequencySwitch | None,
) -> Runners:
    """Return the runners of a call, compiled where it wants that.

    ``switch`` says where the target's frequencies change. ``compile`` None compiles where ``generate()`` itself would:
    on a static cache, on a GPU. A static cache of the call's own that can't be used gives way to a dynamic one; for a
    caller's cache this is an error.
    """
    static = _static(model, compile, acceptor, choice, call, switch)
    if static is not None:
        return static
    inputs = compat.forward_inputs(model, call.ids, call.inputs)
    length, seen = call.ids.shape[1], _seen(call)
    if compat.has_recurrent_state(model):
        keeps_cache = belongs_to_user(compat.cache_of(call.inputs)) or bool(call.config.return_dict_in_generate)
        # Padding of a prompt alone may be part of the text, so only rows of a batch skip it.
        padding = padding_before(call.inputs.get("attention_mask")) if call.of_batch else 0
        return RecurrentRunner(inputs, call.inputs, length, seen, padding=padding, keeps_cache=keeps_cache), None
    return DynamicCacheRunner(inputs, call.inputs, length, seen, _last_position(call)), None


def _seen(call: Prepared) -> int:
    """Return how many of the prompt's tokens the caller's cache holds."""
    unseen = compat.uncached_tokens(call.ids, call.inputs, call.config)
    return 0 if unseen is None else call.ids.shape[1] - unseen


def _last_position(call: Prepared) -> int | None:
    return call.config.max_length - 1 if call.batch > 1 else None


def _static(
    model: PreTrainedModel, compile: bool | None, acceptor: Acceptor, choice: DrafterChoice, call: Prepared,
    switch: compat.FrequencySwitch | None,
) -> Runners | None:  # fmt: skip
    """Return a call's runners on static caches; None where these are impossible or not wanted."""
    cache = compat.cache_of(call.inputs)
    given = isinstance(compat.text_cache(cache), StaticCache)
    if not given and not compile:
        return None
    obstacle = _obstacle(model, acceptor, choice, call)
    if obstacle is None and switch is not None:
        obstacle = "its frequencies change with the width of a forward"
    if obstacle is not None:
        if given and belongs_to_user(cache):
            raise LossyUnsupportedError(
                f"`{compat.CACHE}` is a static cache, but {obstacle}; pass a DynamicCache, or leave it out"
            )
        call.inputs[compat.cache_name(model)] = compat.new_cache(model, like=cache) if given else cache
        _say(given, obstacle)
        return None
    compiling = compat.compiles_by_itself(model, call.inputs, call.config) if compile is None else compile
    widths = _verified_widths(choice)
    target = _target(model, call, widths[-1])
    if compiling and (obstacle := _compile(target, widths, call)) is not None:
        _say(False, obstacle)
        if not given:
            return None
    draft = None
    if target.compiled and choice.drafts_with_model:
        draft = _draft(choice.assistant_model, model, call)
    return target, draft


def _obstacle(model: PreTrainedModel, acceptor: Acceptor, choice: DrafterChoice, call: Prepared) -> str | None:
    """Say why the target's cache can't be static; None where it can."""
    cache = compat.cache_of(call.inputs)
    if model.config.is_encoder_decoder:
        return f"{type(model).__name__} has an encoder"
    if compat.is_offloaded_cache(cache):
        return "it is offloaded"
    if acceptor.unverified_drafting is not None:
        return f"the rule {acceptor.name!r} drafts any number of tokens"
    if not (choice.drafts_with_model or choice.translation is not None or set(choice.options) == _LOOKUP):
        return "its drafter may want to see the target's inputs and outputs"
    if belongs_to_user(cache) and not isinstance(cache, StaticCache):
        return f"`{compat.CACHE}` is a {type(cache).__name__}"
    if belongs_to_user(cache) and not rewinds(cache):
        return "its sliding windows can't be rolled back by position"
    if call.batch > 1 and path_to_decoder(model) is None:
        return f"the decoder of {type(model).__name__} is no module of its own, so its rows can't be filled up"
    return _obstacle_to_static(model) or _obstacle_to_inputs(call)


def _verified_widths(choice: DrafterChoice) -> tuple[int, ...]:
    """Return how many tokens the target's forwards are over: the drafted ones and the token before them."""
    return _ANY_WIDTH if choice.longest is None or choice.drafts_with_eagle3 else (choice.longest + 1,)


def _target(model: PreTrainedModel, call: Prepared, width: int) -> StaticCacheRunner:
    """Return the target's runner, on the caller's static cache or on one of the pool's."""
    cache = compat.cache_of(call.inputs)
    if belongs_to_user(cache):
        slot = StaticCacheSlot(cache, int(cache.get_seq_length()))
    else:
        slot = take_slot(model, call.config.max_length + width, call.batch)
    runner = StaticCacheRunner(model, slot, call.inputs, _seen(call), _last_position(call))
    given_back = call.batch > 1 or not call.config.return_dict_in_generate
    runner.keeps_cache = belongs_to_user(cache) or not given_back
    return runner


def _draft(model: PreTrainedModel, target: PreTrainedModel, call: Prepared) -> Callable[[], ModelRunner] | None:
    """Return what makes the draft model's compiled runner; None where it drafts on a dynamic cache."""
    obstacle = _obstacle_to_static(model)
    if model.get_input_embeddings() is target.get_input_embeddings():
        obstacle = "the draft is a part of the target, and new in every call"
    if obstacle is None:
        slot = take_slot(model, call.config.max_length + _DRAFT_WIDTHS[-1], call.batch)
        mask = {"attention_mask": mask_of(call.ids, call.inputs)}
        runner = StaticCacheRunner(model, slot, mask, last_position=_last_position(call))
        obstacle = _compile(runner, _DRAFT_WIDTHS, call)
    if obstacle is None:
        return lambda: runner
    _say(False, obstacle)
    return None


def _compile(runner: StaticCacheRunner, widths: tuple[int, ...], call: Prepared) -> str | None:
    """Compile a model's forwards; return why that is impossible, if it is."""
    if (obstacle := _obstacle_to_compiling(runner.model)) is not None:
        return obstacle
    if runner.slot.filled:
        return f"`{compat.CACHE}` holds tokens already, which compiling would overwrite"
    try:
        runner.compile(call.config.compile_config, widths)
    except Exception as error:  # whatever a compiler, a backend or a model's code may raise
        runner.compiled.clear()
        forget(runner.model)
        reason = " ".join(str(error).strip().split("\n")[:2])
        return f"{type(runner.model).__name__} can't be compiled ({type(error).__name__}: {reason})"
    return None


def _say(static: bool, obstacle: str) -> None:
    what = "a static cache" if static else "`compile` in `lossy_config`"
    warn_once(f"{what} has no effect here: {obstacle}. Decoding goes on without it.")


def _obstacle_to_static(model: PreTrainedModel) -> str | None:
    """Say why a model can't run on a static cache; None where it can."""
    name = type(model).__name__
    attention = compat.attention_of(model)
    if attention not in compat.MASKED_ATTENTION:
        return f"{attention!r} attention looks at empty slots of a static cache; load {name} with 'sdpa'"
    if not compat.supports_static_cache(model):
        return f"{name} does not support static caches"
    for parameter in ("position_ids", "logits_to_keep"):
        if not compat.forward_accepts(model, parameter):
            return f"the forward of {name} takes no `{parameter}`"
    if not rewinds(cache := new_static_cache(model, 8)):
        kinds = sorted({type(layer).__name__ for layer in cache.layers})
        return f"{name} has layers that can't be rolled back by position ({', '.join(kinds)})"
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


def _obstacle_to_compiling(model: PreTrainedModel) -> str | None:
    """Say why a model on a static cache can't be compiled; None where it can."""
    name = type(model).__name__
    if (quantizer := getattr(model, "hf_quantizer", None)) is not None and not quantizer.is_compileable:
        return f"the quantisation of {name} can't be compiled"
    if (rounded := dtype_of(model)) is not None:
        return f"the kernels that {name} was quantised to {rounded} for can't be compiled"
    if is_prepacked(model):
        return f"{name} is prepacked, which does as much for it on a CPU"
    places = {str(place) for place in getattr(model, "hf_device_map", {}).values()}
    if len(places) > 1 and places & {"cpu", "disk"}:
        return f"parts of {name} are offloaded"
    if "forward" in vars(model) or "forward" in vars(model.get_decoder()):
        return f"the forward of {name} has been replaced, as accelerate's hooks do"
    return None
