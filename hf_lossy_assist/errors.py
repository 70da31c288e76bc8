"""The errors of this package. All are a ``ValueError`` too, so ``except ValueError`` catches them."""

import functools
import inspect
import warnings

_PASSED_THROUGH = ("hf_lossy_assist", "transformers", "torch", "contextlib")


class LossyError(ValueError):
    """The base of all errors that this package raises."""


class LossyValueError(LossyError):
    """An argument has a value that does not work. The message names the argument, the rule and the value."""


class LossyUnsupportedError(LossyError):
    """A well-formed request for something that is not supported (yet)."""


def warn(message: str) -> None:
    """Warn at the user's own line: the nearest caller outside these packages."""
    frame, level = inspect.currentframe().f_back, 2
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _PASSED_THROUGH:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level)


@functools.cache
def warn_once(message: str) -> None:
    warn(message)


class LossyServiceError(LossyError):
    """A service did not answer, refused, or answered nonsense after all retries. A later attempt may succeed."""
