"""Option values that several commands read the same way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import LossyValueError

T = TypeVar("T", int, float)


def numbers(option: str, text: str, kind: Callable[[str], T]) -> list[T]:
    """Return the numbers of a comma-separated list."""
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise LossyValueError(f"`{option}` has to be numbers separated by commas, but is {text!r}") from None


def pretrained(option: str, source: str, loader: Any, **kwargs: Any) -> Any:
    """Load a model or tokenizer that an option names."""
    try:
        return loader.from_pretrained(source, **kwargs)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise LossyValueError(
            f"`{option}` has to be a causal language model in a folder or on the Hub, but is {source!r}: {reason}"
        ) from error
