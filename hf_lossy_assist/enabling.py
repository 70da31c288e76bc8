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
from transformers import GenerationMixin

from .call.lossy_call import LossyCall
from .compat import DECODING_METHODS, mark_user_cache, unwrap
from .stats import CollectedStats, LossyStats

_lock = threading.RLock()
_counts: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
_everywhere = 0
_running = 0
_ORIGINAL = "_replaced_by_hf_lossy_assist"
_last: weakref.WeakKeyDictionary[nn.Module, LossyStats] = weakref.WeakKeyDictionary()
_collecting: list[tuple[nn.Module | None, CollectedStats]] = []
# The call on its way through generate()'s preparations, in this thread.
_pending: ContextVar[LossyCall | None] = ContextVar("pending lossy call", default=None)


def enable(model: nn.Module | None = None) -> None:
    """Let ``generate()`` understand ``lossy_mode``, for one model or for all.

    Calls without a lossy field behave exactly as before. Counted: as many :func:`disable` calls undo it.

    Parameters
    ----------
    model
        A transformers model, or one wrapped by PEFT or ``torch.compile``; None for every model.

    Raises
    ------
    LossyValueError
        When ``model`` can't generate.

    Examples
    --------
    >>> import hf_lossy_assist
    >>> hf_lossy_assist.enable()
    >>> hf_lossy_assist.disable()
    """
    global _everywhere
    with _lock:
        if model is None:
            _everywhere += 1
        else:
            target = unwrap(model)
            _counts[target] = _counts.get(target, 0) + 1
        _install()


def disable(model: nn.Module | None = None) -> None:
    """Undo one :func:`enable` of the same argument. Does nothing where there is none to undo."""
    global _everywhere
    with _lock:
        if model is None:
            _everywhere = max(0, _everywhere - 1)
        else:
            target = unwrap(model)
            _counts[target] = _counts.get(target, 0) - 1
            if _counts[target] <= 0:
                del _counts[target]
        _uninstall_unless_used()


@contextmanager
def enabled(model: nn.Module | None = None) -> Iterator[None]:
    """Enable inside a ``with`` block.

    Examples
    --------
    >>> import hf_lossy_assist
    >>> with hf_lossy_assist.enabled():
    ...     pass
    """
    enable(model)
    try:
        yield
    finally:
        disable(model)


def last_stats(model: nn.Module) -> LossyStats | None:
    """Return the statistics of the last completed lossy call on ``model``, from any thread, or None."""
    return _last.get(unwrap(model))


@contextmanager
def collect(model: nn.Module | None = None) -> Iterator[CollectedStats]:
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
    return _everywhere > 0 or model in _counts


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


@contextmanager
def _in_use() -> Iterator[None]:
    """Whoever disables meanwhile, in another thread or a streamer, does not turn this call into an ordinary one."""
    global _running
    with _lock:
        _running += 1
        _install()
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            _uninstall_unless_used()


def _uninstall_unless_used() -> None:
    if _everywhere or _counts or _running:
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
            return original(self, *args, **kwargs)
        arguments = signature.bind(self, *args, **kwargs).arguments
        arguments.pop("self")
        arguments |= arguments.pop("kwargs", {})
        call = LossyCall.take(self, arguments)
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
