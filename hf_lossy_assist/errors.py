"""The errors of this package. Every one is a ``ValueError``, so ``except ValueError`` keeps working."""

import functools
import inspect
import warnings

_NOT_THE_USER_S = ("hf_lossy_assist", "transformers", "torch", "contextlib")
"""Packages through which a call goes on its way from the user's line."""


class LossyError(ValueError):
    """The base of all errors that this package raises."""


class LossyValueError(LossyError):
    """An argument has a value that can't work. The message names the argument, the rule and the value."""


class LossyUnsupportedError(LossyError):
    """A well-formed request for something that is not (yet) supported."""


def warn(message: str) -> None:
    """Warn the user, of the line of theirs that led here."""
    frame, level = inspect.currentframe().f_back, 2
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_THE_USER_S:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level)


@functools.cache
def warn_once(message: str) -> None:
    """Warn the user, once per process."""
    warn(message)


class LossyServiceError(LossyError):
    """A service elsewhere did not answer, refused, or answered nonsense, after all tries. Going on later may help."""
