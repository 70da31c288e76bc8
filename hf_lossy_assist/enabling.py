"""How ``generate()`` reaches this package, and how it stops doing so."""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import nn
from transformers import GenerationMixin, PreTrainedModel

from .call.drafter_choice import DRAFTERS, DRAFTING
from .call.lossy_call import LossyCall
from .compat import DECODING_METHODS, device_of, mark_user_cache, unwrap
from .config import FIELDS, nearest, parse
from .errors import LossyValueError
from .stats import CollectedStats, LossyStats

_lock = threading.RLock()
# What each enabled model's calls have by default, as often as it is enabled.
_defaults: weakref.WeakKeyDictionary[nn.Module, list[dict[str, Any]]] = weakref.WeakKeyDictionary()
_everywhere = 0
# The calls on their way; one that is broken off anywhere dies with its frame.
_running: weakref.WeakSet[_Use] = weakref.WeakSet()
_ORIGINAL = "_replaced_by_hf_lossy_assist"
_last: weakref.WeakKeyDictionary[nn.Module, LossyStats] = weakref.WeakKeyDictionary()
_collecting: list[tuple[nn.Module | None, CollectedStats]] = []
# The call on its way through generate()'s preparations, in this thread.
_pending: ContextVar[LossyCall | None] = ContextVar("pending lossy call", default=None)


def enable(model: Any = None, **defaults: Any) -> None:
    """Let ``generate()`` understand ``lossy_mode``, for one model or for all.

    Calls without a lossy field behave exactly as before. Counted: as many :func:`disable` calls undo it.

    Parameters
    ----------
    model
        A transformers model, one wrapped by PEFT or ``torch.compile``, or a pipeline with one; None for every model.
    **defaults
        What calls on the model are to have where they don't say otherwise: ``lossy_mode``, ``lossy_config``,
        ``lossy_head``, ``assistant_model`` and all else that ``generate()`` takes about drafting. With a drafter and no
        mode, calls are lossless; ``lossy_mode=None`` makes one an ordinary call.

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
    global _everywhere
    given = {name: value for name, value in defaults.items() if value is not None}
    if model is None and given:
        raise LossyValueError(f"`{next(iter(given))}` is a default of one model; pass the model to `enable()` too")
    target = None if model is None else unwrap(model)
    if given:
        given = _checked(target, given)
    with _lock:
        if target is None:
            _everywhere += 1
        else:
            _defaults.setdefault(target, []).append(given)
        _install()


def disable(model: Any = None) -> None:
    """Undo one :func:`enable` of the same argument. Does nothing where there is none to undo."""
    global _everywhere
    with _lock:
        if model is None:
            _everywhere = max(0, _everywhere - 1)
        else:
            target = unwrap(model)
            del _defaults.get(target, [])[-1:]
            if not _defaults.get(target, True):
                del _defaults[target]
        _uninstall_unless_used()


@contextmanager
def enabled(model: Any = None, **defaults: Any) -> Iterator[None]:
    """Enable inside a ``with`` block; arguments are those of :func:`enable`.

    Examples
    --------
    >>> import hf_lossy_assist
    >>> with hf_lossy_assist.enabled():
    ...     pass
    """
    enable(model, **defaults)
    try:
        yield
    finally:
        disable(model)


def last_stats(model: Any) -> LossyStats | None:
    """Return the statistics of the last completed lossy call on ``model``, from any thread, or None."""
    return _last.get(unwrap(model))


@contextmanager
def collect(model: Any = None) -> Iterator[CollectedStats]:
    """Collect the statistics of all lossy calls inside a ``with`` block, from any thread.

    Parameters
    ----------
    model
        Whose; None for every model.

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


def _is_enabled(model: nn.Module) -> bool:
    return _everywhere > 0 or model in _defaults


def _checked(target: PreTrainedModel, defaults: dict[str, Any]) -> dict[str, Any]:
    """Return a model's defaults, with a mode where they have a drafter, or raise."""
    known = (*FIELDS, *DRAFTING)
    for name in defaults:
        if name not in known:
            raise LossyValueError(
                f"`{name}` can't be a default of an enabled model, only {known}{nearest(name, known)}"
            )
    if any(name in defaults for name in DRAFTERS):
        defaults.setdefault("lossy_mode", "lossless")
    if "lossy_mode" in defaults:
        parse(*(defaults.get(name) for name in FIELDS), device=device_of(target))
    return defaults


def _add_defaults(model: PreTrainedModel, arguments: dict[str, Any]) -> dict[str, Any]:
    """Add what an enabled model's calls have by default to those of one call; return the lossy fields among them."""
    with _lock:
        defaults = next((given for given in reversed(_defaults.get(model, [])) if given), {})
    if arguments.get("lossy_mode", defaults) is None:
        return {}
    drafts = any(arguments.get(name) is not None for name in DRAFTERS)
    for name, value in defaults.items():
        if name in DRAFTING and not (drafts and name in DRAFTERS) and arguments.get(name) is None:
            arguments[name] = value
    return {name: defaults[name] for name in FIELDS if name in defaults}


def _install() -> None:
    # generate() prepares inputs, cache, processors and criteria; the decoding method at its end is replaced for
    # calls that ask for it. Both stay class attributes, so copies and subclasses of a model need no patch of their own.
    # Each knows what it replaces, so that an interruption between them leaves nothing that can't be gone on from.
    for name, wrap in (("generate", _wrap_generate), *((name, _wrap_decoding) for name in DECODING_METHODS)):
        current = getattr(GenerationMixin, name)
        if not hasattr(current, _ORIGINAL):
            wrapper = wrap(current)
            setattr(wrapper, _ORIGINAL, current)
            setattr(GenerationMixin, name, wrapper)


class _Use:
    pass


@contextmanager
def _in_use() -> Iterator[None]:
    """Whoever disables meanwhile, in another thread or a streamer, does not turn this call into an ordinary one."""
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
    if _everywhere or _defaults or _running:
        return
    for name in ("generate", *DECODING_METHODS):
        original = getattr(getattr(GenerationMixin, name), _ORIGINAL, None)
        if original is not None:
            setattr(GenerationMixin, name, original)


def _wrap_generate(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Drafters of transformers call generate() with copies of our caller's configuration.
        is_assistant = getattr(kwargs.get("generation_config"), "is_assistant", False)
        if not _is_enabled(self) or is_assistant or kwargs.get("custom_generate") is not None:
            if kwargs.get("lossy_mode") is not None and kwargs.get("custom_generate") is None:
                raise LossyValueError(
                    f"`lossy_mode` {kwargs['lossy_mode']!r} needs the model to be enabled, and this one is not, as a "
                    "copy of an enabled model isn't; call `hf_lossy_assist.enable(model)`"
                )
            return original(self, *args, **kwargs)
        arguments = signature.bind(self, *args, **kwargs).arguments
        arguments.pop("self")
        arguments |= arguments.pop("kwargs", {})
        call = LossyCall.take(self, arguments, _add_defaults(self, arguments))
        mark_user_cache(arguments.get("past_key_values"))
        outer = _pending.get()
        try:
            # None for an ordinary call, which may be made while a lossy one is being prepared: by its streamer, say.
            _pending.set(call)
            with _in_use():
                return original(self, **arguments)
        finally:
            _pending.set(outer)

    return generate


def _wrap_decoding(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def decoding(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = _pending.get()
        if call is None or call.model is not self:
            return original(self, *args, **kwargs)
        _pending.set(None)  # what the drafter generates inside is an ordinary call
        result, stats = call.decode(*args, **kwargs)
        _last[self] = stats
        with _lock:
            for model, collected in _collecting:
                if model is None or model is self:
                    collected.calls.append(stats)
        return result

    return decoding
