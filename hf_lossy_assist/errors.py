"""The errors of this package. Every one is a ``ValueError``, so ``except ValueError`` keeps working."""

import functools
import warnings


class LossyError(ValueError):
    """The base of all errors that this package raises."""


class LossyValueError(LossyError):
    """An argument has a value that can't work. The message names the argument, the rule and the value."""


class LossyUnsupportedError(LossyError):
    """A well-formed request for something that is not (yet) supported."""


@functools.cache
def warn_once(message: str) -> None:
    """Warn the user, once per process."""
    warnings.warn(message, UserWarning, stacklevel=2)


class LossyServiceError(LossyError):
    """A service elsewhere did not answer, refused, or answered nonsense, after all tries. Going on later may help."""
