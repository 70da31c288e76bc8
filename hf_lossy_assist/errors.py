"""The errors of this package. All are a ``ValueError`` too, so ``except ValueError`` catches them."""

import difflib
import functools
import inspect
import warnings
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

_PASSED_THROUGH = ("hf_lossy_assist", "transformers", "torch", "contextlib")


# Control characters but tab and newline, to their pictures: a terminal obeys some, such as those that set its title.
_PICTURES = {code: code + 0x2400 for code in range(32) if chr(code) not in "\t\n"}
_PICTURES |= dict.fromkeys(range(0x7F, 0xA0), 0x2421)


def printable(text: str) -> str:
    """Return a text with pictures in the place of control characters, so that a terminal shows it and does no more.

    Examples
    --------
    >>> printable("\\x1b]0;title\\x07 is\\tkept")
    '␛]0;title␇ is\\tkept'
    """
    return text.translate(_PICTURES)


class LossyError(ValueError):
    """The base of all errors that this package raises."""

    def __str__(self) -> str:
        return printable(super().__str__())  # it may quote a file or the Hub


class LossyValueError(LossyError):
    """An argument has a value that does not work. The message names the argument, the rule and the value."""


class LossyUnsupportedError(LossyError):
    """A well-formed request for something that is not supported (yet)."""


def warn(message: str) -> None:
    """Warn at the user's own line: the nearest caller outside these packages."""
    frame, level = inspect.currentframe().f_back, 2
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _PASSED_THROUGH:
        frame, level = frame.f_back, level + 1
    warnings.warn(printable(message), UserWarning, stacklevel=level)


@functools.cache
def warn_once(message: str) -> None:
    warn(message)


class LossyServiceError(LossyError):
    """A service did not answer, refused, or answered nonsense after all retries. A later attempt may succeed."""


def brief(value: Any) -> str:
    """Return the ``repr`` of a value for a message, shortened if it is long."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deep, or an int of too many digits
        text = f"<{type(value).__name__} that is too long to show>"
    return text if len(text) <= 200 else f"{text[:100]}…{text[-99:]}"


def nearest(value: Any, names: Iterable[str]) -> str:
    """Return ``"; did you mean 'name'?"`` for the most similar name, or an empty string."""
    by_spelling = {name.lower(): name for name in names}
    close = difflib.get_close_matches(str(value).lower(), by_spelling, n=1, cutoff=0.7)
    return f"; did you mean {by_spelling[close[0]]!r}?" if close else ""


EXTRAS = {"lab": ("datasets", "matplotlib", "pyarrow", "sklearn"), "api": ("openai",), "lm-eval": ("lm_eval",)}
"""By extra of the package, what it brings that only some parts import."""


def need(extra: str, user: str) -> None:
    """Raise :class:`LossyUnsupportedError` where an extra that ``user`` needs is not installed.

    Examples
    --------
    >>> need("lab", "`evaluate`")
    """
    if missing := [name for name in EXTRAS[extra] if find_spec(name) is None]:
        raise LossyUnsupportedError(
            f"{user} needs packages that are not installed ({', '.join(missing)}); `pip install "
            f"'hf-lossy-assist[{extra}]'` brings them"
        )
