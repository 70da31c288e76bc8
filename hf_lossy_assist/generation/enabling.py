"""Connects ``generate()`` with this package, and disconnects it again."""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, TypedDict, Unpack

from torch import nn
from transformers import GenerationMixin, PreTrainedModel

from ..compat import models
from ..compat.models import device_of, unwrap
from ..core.statistics import CollectedStats, LossyStats
from ..errors import LossyError, LossyUnsupportedError, LossyValueError, nearest
from .config import FIELDS, LossyConfig, guarded
from .drafter_choice import DRAFTERS, DRAFTING
from .lossy_call import LossyCall
from .spelling import LossyMode

_lock = threading.RLock()


class _Lasting(dict[str, Any]):
    """Defaults of :func:`enable`, which last until :func:`disable`; others are those of an open block."""


class _Layers(list[dict[str, Any]]):
    """What enables a model: layers of defaults, of which later ones replace earlier ones.

    The model holds them itself, so that a default that refers to it does not keep it alive. A copy has none of its own.
    """

    name = "_defaults_of_hf_lossy_assist"

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = weakref.ref(model)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return list, ()

    @classmethod
    def of(cls, model: nn.Module) -> list[dict[str, Any]] | None:
        """Return a model's layers; None where it was never enabled."""
        layers = vars(model).get(cls.name)
        return layers if isinstance(layers, cls) and layers.model() is model else None


_enabled: weakref.WeakSet[nn.Module] = weakref.WeakSet()
# What enables every model.
_everywhere: list[dict[str, Any]] = []
# The running calls; an interrupted one dies with its frame.
_running: weakref.WeakSet[_Use] = weakref.WeakSet()
_ORIGINAL = "_replaced_by_hf_lossy_assist"
_last: weakref.WeakKeyDictionary[nn.Module, LossyStats] = weakref.WeakKeyDictionary()
_collecting: list[tuple[nn.Module | None, CollectedStats]] = []
# The call that generate() is preparing in this thread.
_pending: ContextVar[LossyCall | None] = ContextVar("pending lossy call", default=None)
# By id, the configurations that models' own generate() have merged, and the calls that they belong to.
_merged_calls: dict[int, LossyCall] = {}


class LossyKeywords(TypedDict, total=False):
    """What :func:`~hf_lossy_assist.enable` takes, and ``generate()`` of an enabled model besides its own keywords.

    Examples
    --------
    >>> settings: LossyKeywords = {"lossy_mode": "min_p", "lossy_config": {"tau": 0.5}, "num_assistant_tokens": 5}
    """

    lossy_mode: LossyMode | str | list[str] | dict[Literal["all_of"], list[str]] | None
    lossy_config: Mapping[str, Any] | None
    lossy_head: Any  # a folder, an id on the Hub, a head, or these by rule
    assistant_model: Any
    candidate_generator: Any
    assistant_early_exit: int | None
    prompt_lookup_num_tokens: int | None
    use_mtp: bool | None
    speculation_type: Any
    tokenizer: Any
    assistant_tokenizer: Any
    num_assistant_tokens: int | Literal["auto"] | None
    num_assistant_tokens_schedule: Literal["constant", "heuristic", "heuristic_transient"] | None
    assistant_confidence_threshold: float | None


def enable(model: Any = None, **defaults: Unpack[LossyKeywords]) -> None:
    """Let ``generate()`` understand ``lossy_mode``, for one model or for all, until :func:`disable`.

    Calls without a lossy field behave exactly as before. Enabling again changes the named defaults, keeps the others,
    and needs no second :func:`disable`. A new mode drops the settings and the head of the mode before it, all but
    ``require_lossless``, and a new drafter replaces the one before it.

    Parameters
    ----------
    model
        A transformers model, one wrapped by PEFT or ``torch.compile``, or a pipeline with one; None for every model.
    **defaults
        Defaults of calls on the model, or on every model: ``lossy_mode``, ``lossy_config``, ``lossy_head``,
        ``assistant_model`` and all other keywords of ``generate()`` about drafting. None removes a default. With a
        drafter and no mode, calls are lossless; a call with ``lossy_mode=None`` is an ordinary one. Keywords of a call
        beat defaults. Defaults beat a ``generation_config``, so clients of a server that may send one can't choose the
        rule or its head. A model's own defaults beat those of every model. No model drafts for itself.

    Raises
    ------
    LossyValueError
        When ``model`` can't generate, or a default is unknown or can't work.

    Examples
    --------
    >>> import hf_lossy_assist
    >>> from hf_lossy_assist import pairs
    >>> pair = pairs.load("arithmetic")
    >>> inputs = pair.tokenizer("Tom has 3 apples and buys 4 more.", return_tensors="pt")
    >>> hf_lossy_assist.enable(pair.target, assistant_model=pair.draft, lossy_mode="topk", lossy_config={"k": 3})
    >>> text = pair.target.generate(**inputs, max_new_tokens=20)
    >>> hf_lossy_assist.last_stats(pair.target).accepted_by.keys()
    dict_keys(['topk'])
    >>> hf_lossy_assist.disable(pair.target)
    """
    layers = _checked(model, defaults)
    with _lock:
        lasting = [layer for layer in layers if isinstance(layer, _Lasting)]
        blocks = [layer for layer in layers if not isinstance(layer, _Lasting)]
        layers[:] = [_Lasting(_merged([*lasting, defaults])), *blocks]
        _install()


def disable(model: Any = None) -> None:
    """Undo all calls of :func:`enable` with the same argument; open blocks of :func:`enabled` remain."""
    with _lock:
        layers = _layers_of(model)
        layers[:] = [layer for layer in layers if not isinstance(layer, _Lasting)]
        _uninstall_unless_used()


@contextmanager
def enabled(model: Any = None, **defaults: Unpack[LossyKeywords]) -> Iterator[None]:
    """Enable inside a ``with`` block; arguments are those of :func:`enable`.

    A model stays enabled until its last block ends, and longer where :func:`enable` was called. A block adds its
    defaults to those around it, by the rules for enabling again, and removes them at its end.

    Examples
    --------
    >>> import hf_lossy_assist
    >>> with hf_lossy_assist.enabled():
    ...     pass
    """
    layers = _checked(model, defaults)
    try:
        with _lock:
            layers.append(defaults)
            _install()
        yield
    finally:
        with _lock:
            layers[:] = [layer for layer in layers if layer is not defaults]
            _uninstall_unless_used()


def last_stats(model: Any) -> LossyStats | None:
    """Return the statistics of the last completed call on ``model``, from any thread; None after an ordinary call.

    After an interrupted call, it is None too. Calls while the model is not enabled don't count.
    """
    return _last.get(unwrap(model))


@contextmanager
def collect(model: Any = None) -> Iterator[CollectedStats]:
    """Collect the statistics of all lossy calls inside a ``with`` block, from any thread.

    Parameters
    ----------
    model
        The model whose calls count; None for every model.

    Examples
    --------
    >>> import hf_lossy_assist
    >>> with hf_lossy_assist.collect() as stats:
    ...     pass
    >>> len(stats), stats.tokens
    (0, 0)
    """
    entry = None if model is None else unwrap(model), CollectedStats()
    with _lock:
        _collecting.append(entry)
    try:
        yield entry[1]
    finally:
        with _lock:
            _collecting[:] = [other for other in _collecting if other is not entry]


def _layers_of(model: Any) -> list[dict[str, Any]]:
    if model is None:
        return _everywhere
    model = unwrap(model)
    with _lock:  # another thread may be going through all of them
        if _Layers.of(model) is None:
            vars(model)[_Layers.name] = _Layers(model)
            _enabled.add(model)
            weakref.finalize(model, _forget_freed).atexit = False
        return _Layers.of(model)


def _checked(model: Any, defaults: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a model's layers of defaults; raise where these defaults can't be added."""
    known = (*FIELDS, *DRAFTING)
    for name in defaults:
        if name not in known:
            raise LossyValueError(f"`{name}` can't be a default of a model; use one of {known}{nearest(name, known)}")
    layers = _layers_of(model)
    merged = _merged([*(() if model is None else _everywhere), *layers, defaults])
    inner = None if model is None else unwrap(model)
    if inner is not None and (models.decodes_elsewhere(inner) or models.replaces_decoding(inner)):
        raise _decodes_elsewhere("`model`", inner)
    if defaults and "lossy_mode" in merged:
        device = "cpu" if inner is None else device_of(inner)
        LossyConfig.from_fields(*(merged.get(name) for name in FIELDS), device=device)
    return layers


def _decodes_elsewhere(subject: str, model: PreTrainedModel) -> LossyUnsupportedError:
    name, parts = type(model).__name__, models.generating_parts(model)
    if not parts:
        return LossyUnsupportedError(
            f"{subject} can't be used with {name}, which has a decoding loop of its own; call its `generate()` as it is"
        )
    return LossyUnsupportedError(
        f"{subject} can't be used with {name}, whose `generate()` lets other models decode, so nothing would be "
        f"drafted; enable the one that writes the text, {' or '.join(f'`model.{part}`' for part in parts)}, in place "
        "of it"
    )


def _merged(layers: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the defaults of several layers; later ones replace earlier ones."""
    merged: dict[str, Any] = {}
    for given in layers:
        mode = merged.get("lossy_mode")
        dropped = FIELDS if mode is not None and given.get("lossy_mode", mode) != mode else ()
        if not given.keys().isdisjoint(DRAFTERS):
            dropped = (*dropped, *DRAFTERS)
        kept = {name: value for name, value in merged.items() if name not in dropped}
        on = given.get("lossy_mode", mode) is not None
        merged = guarded(kept | given, merged.get("lossy_config")) if on else kept | given
    return {name: value for name, value in merged.items() if value is not None}


def _add_defaults(
    model: PreTrainedModel, own: list[dict[str, Any]] | None, arguments: dict[str, Any]
) -> dict[str, Any]:
    """Add a model's defaults, and its ``own``, to one call's arguments; return the lossy fields among them."""
    with _lock:
        layers = [*_everywhere, *(own or ())]
    if not any(layers) or (own is None and models.replaces_decoding(model)):  # all models that can
        return {}
    defaults = _merged(layers)
    if own is None and defaults.get("assistant_model") is model:
        return {"lossy_mode": None}
    if not defaults.keys().isdisjoint(DRAFTERS):
        defaults.setdefault("lossy_mode", "lossless")
    if arguments.get("lossy_mode", defaults) is None:
        return {}
    drafts = any(arguments.get(name) is not None for name in DRAFTERS)
    for name, value in defaults.items():
        if name in DRAFTING and not (drafts and name in DRAFTERS) and arguments.get(name) is None:
            arguments[name] = value
    return {name: defaults[name] for name in FIELDS if name in defaults}


def _install() -> None:
    # generate() prepares inputs, cache, processors and criteria; lossy calls replace the decoding method at its end.
    # Class attributes serve copies and subclasses of a model too. Each wrapper knows its original, so an interruption
    # between them leaves the model usable.
    for name, wrap in _WRAPPERS.items():
        current = getattr(GenerationMixin, name)
        if not hasattr(current, _ORIGINAL):
            wrapper = wrap(current)
            setattr(wrapper, _ORIGINAL, current)
            setattr(models.owner_of(name), name, wrapper)


class _Use:
    pass


@contextmanager
def _in_use() -> Iterator[None]:
    """Keep lossy decoding installed for one call, even if another thread or a streamer disables it meanwhile."""
    use = _Use()
    try:
        with _lock:
            _running.add(use)
            _install()
        yield
    finally:
        with _lock:
            _running.discard(use)
            _uninstall_unless_used()


def _uninstall_unless_used() -> None:
    if _running or any((_everywhere, *map(_Layers.of, _enabled))):
        return
    for name in _WRAPPERS:
        original = getattr(getattr(GenerationMixin, name), _ORIGINAL, None)
        if original is not None:
            setattr(models.owner_of(name), name, original)


def _forget_freed() -> None:
    # Models are freed anywhere, also while another thread that waits for this one has the lock.
    if _lock.acquire(blocking=False):
        try:
            _uninstall_unless_used()
        finally:
            _lock.release()


def _wrap_generate(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        # transformers' drafters call generate() with copies of the caller's configuration.
        is_assistant = getattr(kwargs.get("generation_config"), "is_assistant", False)
        custom = kwargs.get("custom_generate") is not None
        own = _Layers.of(self)
        if not (_everywhere or own) or is_assistant or custom:
            if kwargs.get("lossy_mode") is not None and not custom:
                raise LossyValueError(
                    f"`lossy_mode` {kwargs['lossy_mode']!r} needs the model to be enabled, and this one is not; a copy "
                    "of an enabled model has to be enabled too; call `hf_lossy_assist.enable(model)`"
                )
            return original(self, *args, **kwargs)
        arguments = signature.bind(self, *args, **kwargs).arguments
        arguments.pop("self")
        arguments |= arguments.pop("kwargs", {})
        call = _merged_calls.get(id(arguments.get("generation_config")))
        if call is None:
            call = LossyCall.from_keywords(self, arguments, _add_defaults(self, own, arguments))
        else:
            call = call.with_inputs(arguments)
        outer = _pending.get()
        try:
            # None for an ordinary call, which a streamer may make while a lossy call is being prepared.
            _pending.set(call)
            with _in_use():
                output = original(self, **arguments)
            if call is None:
                _last.pop(self, None)
            return output
        except BaseException:
            _last.pop(self, None)
            raise
        finally:
            _pending.set(outer)

    return generate


def _wrap_merge(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def merge(self: Any, generation_config: Any = None, **kwargs: Any) -> Any:
        own = _Layers.of(self)
        enabled = (_everywhere or own) and not getattr(generation_config, "is_assistant", False)
        if not enabled or not models.merged_by_own_generate(self):
            return original(self, generation_config, **kwargs)
        # Afterwards, transformers' defaults would look like the user's choice, and Whisper would drop a rule because of
        # the assistant, and write into the assistant's files.
        arguments = {"generation_config": generation_config, **kwargs}
        call = LossyCall.from_keywords(self, arguments, _add_defaults(self, own, arguments))
        if call is None:
            return original(self, generation_config, **kwargs)
        mode = call.config.rule.name
        if models.decodes_elsewhere(self):
            raise _decodes_elsewhere(f"`lossy_mode` {mode!r}", self)
        _last.pop(self, None)
        call.with_inputs(arguments)
        merged, others = original(self, arguments.pop("generation_config"), **arguments)
        _merged_calls[id(merged)] = call
        weakref.finalize(merged, _merged_calls.pop, id(merged), None).atexit = False
        return merged, {**others, "lossy_mode": mode}

    return merge


def _wrap_continuous_batching(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        mode = kwargs.pop("lossy_mode", ...)
        own = _Layers.of(self)
        if mode is ... and (_everywhere or own):
            argument = inspect.signature(original).bind(self, *args, **kwargs).arguments.get("generation_config")
            defaults = _add_defaults(self, own, {}).get("lossy_mode")
            mode = defaults or getattr(argument or self.generation_config, "lossy_mode", None)
        if mode not in (None, ...):
            raise LossyUnsupportedError(
                f"`lossy_mode` {mode!r} can't be used with `{original.__name__}()`, because continuous batching has a "
                "loop of its own; call `generate()`, or pass `lossy_mode=None`"
            )
        return original(self, *args, **kwargs)

    return batch


def _wrap_decoding(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def decoding(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = _pending.get()
        if call is None or call.model is not self:
            return original(self, *args, **kwargs)
        _pending.set(None)  # calls of the drafter inside are ordinary ones
        try:
            result, stats = call.decode(*args, **kwargs)
        except LossyError as error:
            call.given.explain(error)
            raise
        _last[self] = stats
        with _lock:
            for model, collected in _collecting:
                if model is None or model is self:
                    collected.calls.append(stats)
        return result

    return decoding


_WRAPPERS: Mapping[str, Callable[..., Any]] = {
    "generate": _wrap_generate,
    models.MERGE: _wrap_merge,
    **dict.fromkeys(models.DECODING_METHODS, _wrap_decoding),
    **dict.fromkeys(models.CONTINUOUS_BATCHING, _wrap_continuous_batching),
}
"""By name of a method of `GenerationMixin`, what wraps it while any model is enabled."""
