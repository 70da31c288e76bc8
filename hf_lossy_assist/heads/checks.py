"""Checks of values that may come from a file."""

from __future__ import annotations

import json
import reprlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from ..errors import LossyValueError, warn

LIBRARY = "hf_lossy_assist"

MOST = 1 << 24
"""The largest width or vocabulary that is accepted; no model comes near it."""

_T = TypeVar("_T")

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 200


def brief(value: Any) -> str:
    """Return the ``repr`` of a value for a message, cut short where it is long.

    Examples
    --------
    >>> brief(0.5), len(brief("a" * 10_000))
    ('0.5', 200)
    """
    return _SHORT.repr(value)


def require(holds: bool, argument: str, expected: str, value: Any) -> None:
    """Raise where an argument is not what is expected."""
    if not holds:
        raise LossyValueError(f"`{argument}` has to be {expected}, but is {brief(value)}")


def is_number(value: Any) -> bool:
    """Tell whether ``value`` is a finite number, and none of numpy's or torch's that JSON doesn't know."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    # An int may be larger than any float.
    return -sys.float_info.max <= value <= sys.float_info.max


def check_probability(argument: str, value: Any) -> None:
    """Raise where ``value`` is no number between 0 and 1."""
    require(is_number(value) and 0 <= value <= 1, argument, "a number between 0 and 1", value)


def check_size(argument: str, value: Any) -> None:
    """Raise where ``value`` is no positive integer of at most :data:`MOST`."""
    fits = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST
    require(fits, argument, f"a positive integer of at most {MOST:,}", value)


def check_text(argument: str, value: Any) -> None:
    """Raise where ``value`` is no string."""
    require(isinstance(value, str), argument, "a string", value)


def check_mapping(argument: str, value: Any) -> None:
    """Raise where ``value`` is no mapping, or has something in it that JSON can't hold."""
    require(isinstance(value, Mapping), argument, "a mapping", value)
    try:
        json.dumps(value, allow_nan=False)
    except (RecursionError, TypeError, ValueError) as error:
        raise LossyValueError(f"`{argument}` has to be plain JSON, but is {brief(value)}: {error}") from error


def check_sequence(argument: str, value: Any) -> None:
    """Raise where ``value`` is no sequence."""
    require(isinstance(value, Sequence) and not isinstance(value, str), argument, "a sequence", value)


def known_fields(cls: type[_T], values: Any, where: str) -> dict[str, Any]:
    """Return the entries of ``values`` that ``cls`` has fields for; warn of others, and refuse if one is missing."""
    if not isinstance(values, Mapping):
        raise LossyValueError(f"{where} has to be an object of {cls.__name__}'s fields, but is {brief(values)}")
    names = {f.name for f in fields(cls)}
    required = {f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING}
    if missing := sorted(required - set(values)):
        raise LossyValueError(f"{where} lacks {missing}; save the head again with `save_pretrained`")
    if unknown := sorted(set(values) - names):
        warn(
            f"{where} of a head has keys that this version of {LIBRARY} does not know, {brief(unknown)}: they are "
            f"ignored. Upgrade {LIBRARY} if the head came from a newer version."
        )
    return {name: value for name, value in values.items() if name in names}
