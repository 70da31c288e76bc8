"""What of one call runs on static caches, and what of that is compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from transformers import PreTrainedModel
from transformers.cache_utils import StaticCache

from ..acceptors import Acceptor
from ..compat import belongs_to_user, compiles_by_itself, new_cache
from ..drafting import ModelDrafter, mask_of
from ..errors import LossyUnsupportedError, warn_once
from ..forwards.static.cache_slot import POOL, Slots, rewinds
from ..forwards.static.compiled_forward import forget
from ..forwards.static.drafting import WIDTHS, StaticDrafter
from ..forwards.static.forwards import Steps
from ..forwards.static.support import obstacle_to_compiling, obstacle_to_inputs, obstacle_to_static
from .drafter_choice import DrafterChoice
from .prepared import Prepared

_ANY_WIDTH = (8, 16, 40)
_LOOKUP = {"prompt_lookup_num_tokens"}


@dataclass(frozen=True, eq=False)
class Plan:
    """What runs on static caches.

    Attributes
    ----------
    target
        The target's forwards.
    draft
        The draft model's, or None where it drafts on a dynamic cache or there is none.
    """

    target: Steps
    draft: Steps | None

    @property
    def model_drafter(self) -> Callable[..., ModelDrafter]:
        """What makes the drafter of a draft model."""
        return ModelDrafter if self.draft is None else partial(StaticDrafter, steps=self.draft)

    def release(self, cache_returned: bool) -> None:
        """Let later calls use the caches, except for one that is the caller's."""
        if not cache_returned and not belongs_to_user(self.target.slots.cache):
            POOL.give_back(self.target.model, self.target.slots)
        if self.draft is not None:
            POOL.give_back(self.draft.model, self.draft.slots)


def plan_of(
    model: PreTrainedModel, compile: bool | None, acceptor: Acceptor, choice: DrafterChoice, call: Prepared
) -> Plan | None:
    """Return what a call runs on static caches, compiled already; None where everything is dynamic.

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
    cache = call.inputs["past_key_values"]
    given = isinstance(cache, StaticCache)
    if not given and not compile:
        return None
    if (obstacle := _obstacle(model, acceptor, choice, call)) is not None:
        if given and belongs_to_user(cache):
            raise LossyUnsupportedError(
                f"`past_key_values` is a static cache, but {obstacle}; pass a DynamicCache, or leave it out"
            )
        call.inputs["past_key_values"] = new_cache(model) if given else cache
        _say(given, obstacle)
        return None
    compiling = compiles_by_itself(model, call.inputs, call.config) if compile is None else compile
    widths = _verified_widths(choice, call)
    target = _target(model, call, widths[-1])
    if compiling and (obstacle := _compile(target, widths, call)) is not None:
        _say(False, obstacle)
        if not given:
            return None
    draft = None
    if target.programs and choice.drafts_with_model:
        draft = _draft(choice.assistant_model, model, call)
    return Plan(target, draft)


def _obstacle(model: PreTrainedModel, acceptor: Acceptor, choice: DrafterChoice, call: Prepared) -> str | None:
    """Say why the target's cache can't be static; None where it can."""
    cache = call.inputs["past_key_values"]
    if acceptor.run_ahead is not None:
        return f"the rule {acceptor.name!r} sends the target as many tokens as it has not seen"
    if not (choice.drafts_with_model or choice.translation is not None or set(choice.options) == _LOOKUP):
        return "its drafter may want to see the target's inputs and outputs"
    if belongs_to_user(cache) and not isinstance(cache, StaticCache):
        return f"`past_key_values` is a {type(cache).__name__}"
    if belongs_to_user(cache) and not rewinds(cache):
        return "its sliding windows can't be rolled back by position"
    return obstacle_to_static(model) or obstacle_to_inputs(call)


def _verified_widths(choice: DrafterChoice, call: Prepared) -> tuple[int, ...]:
    """Return how many tokens the target's forwards are over: drafted ones and the one before them."""
    if choice.assistant_model is None:
        return (choice.options["prompt_lookup_num_tokens"] + 1,)
    constant = isinstance(choice.num_assistant_tokens, int) and not choice.schedule.startswith("heuristic")
    return (choice.num_assistant_tokens + 1,) if constant and choice.drafts_with_model else _ANY_WIDTH


def _target(model: PreTrainedModel, call: Prepared, width: int) -> Steps:
    """Return the target's forwards, on the caller's static cache or on one of the pool's."""
    cache = call.inputs["past_key_values"]
    if belongs_to_user(cache):
        slots = Slots(cache, int(cache.get_seq_length()))
    else:
        slots = POOL.take(model, call.config.max_length + width)
    return Steps(model, slots, call.inputs.get("attention_mask"), call.inputs.get("position_ids"))


def _draft(model: PreTrainedModel, target: PreTrainedModel, call: Prepared) -> Steps | None:
    """Return the draft model's forwards, compiled; None where it has to draft on a dynamic cache."""
    obstacle = obstacle_to_static(model)
    if model.get_input_embeddings() is target.get_input_embeddings():
        obstacle = "the draft is a part of the target, made anew for every call"
    if obstacle is None:
        slots = POOL.take(model, call.config.max_length + WIDTHS[-1])
        steps = Steps(model, slots, mask_of(call.ids, call.inputs))
        obstacle = _compile(steps, WIDTHS, call)
    if obstacle is None:
        return steps
    _say(False, obstacle)
    return None


def _compile(steps: Steps, widths: tuple[int, ...], call: Prepared) -> str | None:
    """Compile a model's forwards; return why that is impossible, if it is."""
    if (obstacle := obstacle_to_compiling(steps.model)) is not None:
        return obstacle
    try:
        steps.compile(call.config.compile_config, widths)
    except Exception as error:  # whatever a compiler, a backend or a model's code may raise
        steps.programs.clear()
        forget(steps.model)
        reason = " ".join(str(error).strip().split("\n")[:2])
        return f"{type(steps.model).__name__} can't be compiled ({type(error).__name__}: {reason})"
    return None


def _say(static: bool, obstacle: str) -> None:
    what = "a static cache" if static else "`compile` in `lossy_config`"
    warn_once(f"{what} has no effect here: {obstacle}. Decoding goes on without.")
