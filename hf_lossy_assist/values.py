"""Conditions on values that users or files give, and dataclasses that check their fields by them."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from .errors import LossyValueError, brief, nearest, warn

MOST = 1 << 24
"""The largest accepted width or vocabulary, far above any model's."""

LARGEST_INT = 2**63 - 1
"""The largest int that a tensor can hold."""

MOST_LEVELS = 32
"""How deep JSON of others may be nested."""

SETTINGS = " in `lossy_config`"
"""Where the settings of a run are."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class Rule:
    """A condition on a value, in words and as a test."""

    expected: str
    holds: Callable[[Any], bool]

    def check(self, argument: str, value: Any, where: str = "") -> None:
        """Raise where the condition does not hold; ``where`` follows the argument's name."""
        if not self.holds(value):
            raise LossyValueError(f"`{argument}`{where} has to be {self.expected}, but is {brief(value)}")


def is_number(value: Any) -> bool:
    """Tell whether ``value`` is a finite number that JSON can hold."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    # An int may be larger than any float.
    return -sys.float_info.max <= value <= sys.float_info.max


@cache
def bounded(low: float, high: float = math.inf, *, integer: bool = False, word: str | None = None) -> Rule:
    """Return the rule for a number in ``[low, high]``, or for an int there, and perhaps for a ``word``.

    Examples
    --------
    >>> bounded(1, 64, integer=True, word="auto").check("nodes", 0)
    Traceback (most recent call last):
    hf_lossy_assist.errors.LossyValueError: `nodes` has to be an int >= 1 and <= 64 or 'auto', but is 0
    """
    kind = int if integer else int | float

    def holds(x: Any) -> bool:
        if not isinstance(x, kind) or isinstance(x, bool):
            return isinstance(x, str) and x == word
        return low <= x <= (min(high, LARGEST_INT) if isinstance(x, int) else high)

    most = {math.inf: "", LARGEST_INT: " and < 2**63"}.get(high, f" and <= {high:g}")
    return Rule(f"{'an int' if integer else 'a number'} >= {low:g}{most}" + (f" or {word!r}" if word else ""), holds)


PROBABILITY = Rule("a number between 0 and 1", lambda x: is_number(x) and 0 <= x <= 1)
SHARE = Rule("a number > 0 and <= 1", lambda x: is_number(x) and 0 < x <= 1)
SIZE = Rule(f"a positive integer of at most {MOST:,}", lambda x: type(x) is int and 0 < x <= MOST)
POSITIVE = Rule("a number above 0", lambda x: is_number(x) and x > 0)
COUNT = Rule("an int >= 0", lambda x: type(x) is int and x >= 0)
ONE_OR_MORE = bounded(1, integer=True)
BOOL = Rule("a bool", lambda x: isinstance(x, bool))
TEXT = Rule("a string", lambda x: isinstance(x, str))


def or_none(rule: Rule, none: str = "None") -> Rule:
    """Return a rule that None meets too; ``none`` says in words what it stands for."""
    return Rule(f"{rule.expected} or {none}", lambda x: x is None or rule.holds(x))


Text = Annotated[str, TEXT]
Probability = Annotated[float, PROBABILITY]
Size = Annotated[int, SIZE]
Count = Annotated[int, COUNT]
Flag = Annotated[bool, BOOL]


@cache
def _rules(cls: type) -> list[tuple[str, Rule]]:
    hints = {name: x for name, x in get_type_hints(cls, include_extras=True).items() if get_origin(x) is Annotated}
    optional = {name for name, x in hints.items() if type(None) in get_args(x.__origin__)}
    rules = [(name, rule) for name, x in hints.items() for rule in x.__metadata__]
    return [(name, rule if rule.holds(None) or name not in optional else or_none(rule)) for name, rule in rules]


class Checked:
    """A dataclass that checks its fields by the rules in their annotations, unless they are at their defaults."""

    where: ClassVar[str] = ""
    """What follows a field's name in errors."""

    def __post_init__(self) -> None:
        for name, rule in _rules(type(self)):
            if (value := getattr(self, name)) is not getattr(type(self), name, ...):
                rule.check(name, value, self.where)


def from_json(text: str | bytes, what: str, remedy: str = "") -> Any:
    """Return the value of a JSON text of others; ``what`` names the text in an error, which ends with the ``remedy``.

    Refused are texts that are damaged or nested too deep, and values that nothing could show or write again: half
    characters, and integers of thousands of digits.

    Examples
    --------
    >>> from_json('{"k": 3}', "`lossy_config`")
    {'k': 3}
    """
    try:
        value = json.loads(text.decode() if isinstance(text, bytes) else text)
        if _is_deeper(value, MOST_LEVELS):
            raise ValueError(f"it is nested in more than {MOST_LEVELS} levels")
        json.dumps(value, ensure_ascii=False).encode()
    except (RecursionError, ValueError) as error:
        raise LossyValueError(f"{what} can't be read as JSON: {error}{remedy}") from error
    return value


def json_or_text(text: str) -> Any:
    """Return the value of a text that a user writes: as JSON, or as it is where it is none.

    Examples
    --------
    >>> json_or_text("3"), json_or_text("naive")
    (3, 'naive')
    """
    try:
        return from_json(text, "the value")
    except LossyValueError:
        return text


def _is_deeper(value: Any, levels: int) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_is_deeper(part, levels - 1) for part in parts)


def check_name(argument: str, name: Any, known: Iterable[str]) -> None:
    """Raise :class:`LossyValueError` unless a name is known; the message says which one it resembles.

    Examples
    --------
    >>> check_name("lossy_mode", "topk", ["topk", "typical"])
    """
    if name not in (known := list(known)):
        raise LossyValueError(f"`{argument}` has to be one of {known}, but is {name!r}{nearest(name, known)}")


def check_keys(argument: str, keys: Sequence[str], given: Iterable[str]) -> None:
    """Raise :class:`LossyValueError` for a key that is none of ``keys``."""
    for key in given:
        if key not in keys:
            raise LossyValueError(f"{argument} has the keys {list(keys)}, but not {key!r}{nearest(key, keys)}")


def known_fields(cls: type[_T], values: Any, where: str) -> dict[str, Any]:
    """Return the JSON values for the fields of ``cls``, with tuples for lists.

    Unknown keys warn; a missing field without a default raises.
    """
    if not isinstance(values, Mapping):
        raise LossyValueError(f"{where} has to be an object of {cls.__name__}'s fields, but is {brief(values)}")
    required = {f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING}
    if missing := sorted(required - set(values)):
        raise LossyValueError(f"{where} lacks {missing}; the file is incomplete, so make it again")
    names = {f.name for f in fields(cls)}
    if unknown := sorted(set(values) - names):
        warn(
            f"{where} has keys that this version of hf_lossy_assist does not know, {brief(unknown)}: they are ignored. "
            "Upgrade hf_lossy_assist if a newer version wrote the file."
        )
    return {name: tuple(x) if isinstance(x, list) else x for name, x in values.items() if name in names}
