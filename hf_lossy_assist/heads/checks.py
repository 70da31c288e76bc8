"""Checks of values that may come from a file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import LossyValueError


def require(holds: bool, argument: str, expected: str, value: Any) -> None:
    """Raise where an argument is not what is expected."""
    if not holds:
        raise LossyValueError(f"`{argument}` has to be {expected}, but is {value!r}")


def is_number(value: Any) -> bool:
    """Tell whether ``value`` is a finite number, and none of numpy's or torch's that JSON doesn't know."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_probability(argument: str, value: Any) -> None:
    """Raise where ``value`` is no number between 0 and 1."""
    require(is_number(value) and 0 <= value <= 1, argument, "a number between 0 and 1", value)


def check_size(argument: str, value: Any) -> None:
    """Raise where ``value`` is no positive integer."""
    require(isinstance(value, int) and not isinstance(value, bool) and value > 0, argument, "a positive integer", value)


def check_mapping(argument: str, value: Any) -> None:
    """Raise where ``value`` is no mapping, or has something in it that JSON can't hold."""
    require(isinstance(value, Mapping), argument, "a mapping", value)
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise LossyValueError(f"`{argument}` has to be plain JSON, but is {value!r}: {error}") from error


def check_sequence(argument: str, value: Any) -> None:
    """Raise where ``value`` is no sequence."""
    require(isinstance(value, Sequence) and not isinstance(value, str), argument, "a sequence", value)
