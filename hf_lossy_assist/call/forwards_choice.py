"""Which forwards a call has: on static caches where it wants them and can have them, else on growing ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from transformers import PreTrainedModel
from transformers.cache_utils import StaticCache

from .. import compat
from ..acceptors import Acceptor
from ..compat import belongs_to_user
from ..drafting.model import mask_of
from ..errors import LossyUnsupportedError, warn_once
from ..forwards import Forwards
from ..forwards.growing import GrowingForwards
from ..forwards.replaying import ReplayingForwards, padding_before
from ..forwards.static.cache_slot import POOL, StaticCacheSlot, rewinds
from ..forwards.static.compiled_forward import forget
from ..forwards.static.decoder_forward import path_to_decoder
from ..forwards.static.forwards import StaticForwards
from ..forwards.static.support import obstacle_to_compiling, obstacle_to_inputs, obstacle_to_static
from .drafter_choice import DrafterChoice
from .prepared import Prepared

_ANY_WIDTH = (8, 16, 40)
_DRAFT_WIDTHS = (1, 2)
"""A round's first forward is over one token or, after a draft that was kept whole, over two; all others over one."""
_LOOKUP = {"prompt_lookup_num_tokens"}


@dataclass(frozen=True, eq=False)
class ForwardsChoice:
    """The forwards of a call.

    Attributes
    ----------
    target
        The target's.
    draft
        Makes the draft model's, where these are on a static cache too; None where the drafter makes its own.
    """

    target: Forwards
    draft: Callable[[], Forwards] | None = None


def choose_forwards(
    model: PreTrainedModel, compile: bool | None, acceptor: Acceptor, choice: DrafterChoice, call: Prepared
) -> ForwardsChoice:
    """Return the forwards of a call, compiled already where they are to be.

    Parameters
    ----------
    model
        The target.
    compile
        What the user said; None compiles where ``generate()`` itself would: on a static cache, on a GPU.
    acceptor, choice, call
        The rule, what drafts, and what ``generate()`` has prepared. A static cache that it has made and that can't be
        used gives way to a dynamic one.

    Raises
    ------
    LossyUnsupportedError
        Where the caller's own static cache can't be used.
    """
    static = _static(model, compile, acceptor, choice, call)
    if static is not None:
        return static
    inputs = compat.forward_inputs(model, call.ids, call.inputs)
    unseen = compat.unseen_tokens(call.ids, call.inputs, call.config)
    length = call.ids.shape[1]
    seen = 0 if unseen is None else length - unseen
    if compat.has_recurrent_state(model):
        keeps_cache = belongs_to_user(compat.cache_of(call.inputs)) or bool(call.config.return_dict_in_generate)
        # A row by itself is read as the model reads it: then padding may be a part of the text.
        padding = padding_before(call.inputs.get("attention_mask")) if call.of_batch else 0
        return ForwardsChoice(
            ReplayingForwards(inputs, call.inputs, length, seen, padding=padding, keeps_cache=keeps_cache)
        )
    return ForwardsChoice(GrowingForwards(inputs, call.inputs, length, seen, _last_position(call)))


def _last_position(call: Prepared) -> int | None:
    return call.config.max_length - 1 if call.batch > 1 else None


def _static(
    model: PreTrainedModel, compile: bool | None, acceptor: Acceptor, choice: DrafterChoice, call: Prepared
) -> ForwardsChoice | None:
    """Return a call's forwards on static caches; None where these can't be, or are not wanted."""
    cache = compat.cache_of(call.inputs)
    given = isinstance(cache, StaticCache)
    if not given and not compile:
        return None
    if (obstacle := _obstacle(model, acceptor, choice, call)) is not None:
        if given and belongs_to_user(cache):
            raise LossyUnsupportedError(
                f"`past_key_values` is a static cache, but {obstacle}; pass a DynamicCache, or leave it out"
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
    return ForwardsChoice(target, draft)


def _obstacle(model: PreTrainedModel, acceptor: Acceptor, choice: DrafterChoice, call: Prepared) -> str | None:
    """Say why the target's cache can't be static; None where it can."""
    cache = compat.cache_of(call.inputs)
    if compat.is_offloaded_cache(cache):
        return "it is offloaded"
    if acceptor.run_ahead is not None:
        return f"the rule {acceptor.name!r} sends the target as many tokens as it has not seen"
    if not (choice.drafts_with_model or choice.translation is not None or set(choice.options) == _LOOKUP):
        return "its drafter may want to see the target's inputs and outputs"
    if belongs_to_user(cache) and not isinstance(cache, StaticCache):
        return f"`past_key_values` is a {type(cache).__name__}"
    if belongs_to_user(cache) and not rewinds(cache):
        return "its sliding windows can't be rolled back by position"
    if call.batch > 1 and path_to_decoder(model) is None:
        return f"{type(model).__name__} has no decoder of its own, whose rows could be filled up"
    return obstacle_to_static(model) or obstacle_to_inputs(call)


def _verified_widths(choice: DrafterChoice) -> tuple[int, ...]:
    """Return how many tokens the target's forwards are over: drafted ones and the one before them."""
    return _ANY_WIDTH if choice.longest is None or choice.drafts_with_eagle3 else (choice.longest + 1,)


def _target(model: PreTrainedModel, call: Prepared, width: int) -> StaticForwards:
    """Return the target's forwards, on the caller's static cache or on one of the pool's."""
    cache, unseen = call.inputs["past_key_values"], compat.unseen_tokens(call.ids, call.inputs, call.config)
    if belongs_to_user(cache):
        slot = StaticCacheSlot(cache, int(cache.get_seq_length()))
    else:
        slot = POOL.take(model, call.config.max_length + width, call.batch)
    seen = 0 if unseen is None else call.ids.shape[1] - unseen
    forwards = StaticForwards(model, slot, call.inputs, seen, _last_position(call))
    given_back = call.batch > 1 or not call.config.return_dict_in_generate
    forwards.keeps_cache = belongs_to_user(cache) or not given_back
    return forwards


def _draft(model: PreTrainedModel, target: PreTrainedModel, call: Prepared) -> Callable[[], Forwards] | None:
    """Return what makes the draft model's forwards, compiled; None where it has to draft on a growing cache."""
    obstacle = obstacle_to_static(model)
    if model.get_input_embeddings() is target.get_input_embeddings():
        obstacle = "the draft is a part of the target, made anew for every call"
    if obstacle is None:
        slot = POOL.take(model, call.config.max_length + _DRAFT_WIDTHS[-1], call.batch)
        mask = {"attention_mask": mask_of(call.ids, call.inputs)}
        forwards = StaticForwards(model, slot, mask, last_position=_last_position(call))
        obstacle = _compile(forwards, _DRAFT_WIDTHS, call)
    if obstacle is None:
        return lambda: forwards
    _say(False, obstacle)
    return None


def _compile(forwards: StaticForwards, widths: tuple[int, ...], call: Prepared) -> str | None:
    """Compile a model's forwards; return why that is impossible, if it is."""
    if (obstacle := obstacle_to_compiling(forwards.model)) is not None:
        return obstacle
    if forwards.slot.filled:
        return "`past_key_values` holds tokens already, which compiling would overwrite"
    try:
        forwards.compile(call.config.compile_config, widths)
    except Exception as error:  # whatever a compiler, a backend or a model's code may raise
        forwards.compiled.clear()
        forget(forwards.model)
        reason = " ".join(str(error).strip().split("\n")[:2])
        return f"{type(forwards.model).__name__} can't be compiled ({type(error).__name__}: {reason})"
    return None


def _say(static: bool, obstacle: str) -> None:
    what = "a static cache" if static else "`compile` in `lossy_config`"
    warn_once(f"{what} has no effect here: {obstacle}. Decoding goes on without.")
