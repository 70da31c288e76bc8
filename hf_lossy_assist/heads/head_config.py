"""The ``config.json`` of heads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar

from typing_extensions import Self

from ..errors import LossyValueError
from .checks import LIBRARY, SIZE, Checked, Probability, Rule, Text, brief, is_number, known_fields
from .identity import ModelIdentity

FORMAT_VERSION = 1
"""Increases when older versions of this package could misread a head."""

STATES = {
    "previous": "the final hidden state that predicted the token",
    "token": "the final hidden state that has read the token",
    "draft": "the final hidden state that has read the drafted token",
}
"""The states of a model that a head may read: inputs of its LM head."""

_HEADER = ("library_name", "format_version", "type", "weights_sha256")


def _is_json(value: Any) -> bool:
    try:
        return isinstance(value, Mapping) and json.dumps(value, allow_nan=False) is not None
    except (RecursionError, TypeError, ValueError):
        return False


def _is_table(rows: Any) -> bool:
    return isinstance(rows, tuple | list) and all(map(_is_json, rows)) and len({tuple(row) for row in rows}) <= 1


_ROWS = Rule("rows", lambda x: isinstance(x, tuple | list))
_TABLE = Rule("rows of plain JSON with the same columns", _is_table)
_NUMBERS = Rule("numbers by name", lambda x: _is_json(x) and all(map(is_number, x.values())))
_JSON = Rule("a mapping of plain JSON", _is_json)


@dataclass(frozen=True, kw_only=True)
class HeadConfig(Checked):
    """The configuration that heads of all kinds share.

    Parameters
    ----------
    target, draft
        The models that the head was trained for.
    task
        The name of the task whose prompts it was trained on. Heads transfer badly between tasks.
    threshold
        The probability at which the head decides, between 0 and 1.
    thresholds
        Other thresholds, with their effects on validation data.
    metrics
        Figures by name, such as the validation ``auc``.
    results
        Rows of the model card's table of accuracy and speed on a test split, all with the same keys.
    provenance
        Versions, command line and seeds that made the head.
    """

    target: ModelIdentity
    draft: ModelIdentity
    task: Text
    threshold: Probability
    thresholds: Annotated[tuple[Any, ...], _ROWS] = ()
    metrics: Annotated[Mapping[str, float], _NUMBERS] = field(default_factory=dict)
    results: Annotated[tuple[Mapping[str, Any], ...], _TABLE] = ()
    provenance: Annotated[Mapping[str, Any], _JSON] = field(default_factory=dict)

    kind: ClassVar[str]
    rule: ClassVar[str]
    row: ClassVar[type]

    @property
    def columns(self) -> list[str]:
        """The features in the order of the weight, ``{model}_{state}``."""
        raise NotImplementedError

    @property
    def width(self) -> int:
        """How many numbers the head reads per token."""
        return sum(getattr(self, name.split("_")[0]).hidden_size for name in self.columns)

    @property
    def reads(self) -> str:
        """The states that the head reads, in words."""
        names = (name.split("_") for name in self.columns)
        return "; ".join(f"{STATES[state]}, of the {model}" for model, state in names)

    def to_dict(self) -> dict[str, Any]:
        return {"library_name": LIBRARY, "format_version": FORMAT_VERSION, "type": self.kind, **asdict(self)}

    @classmethod
    def from_dict(cls, values: Any, where: str = "config.json") -> Self:
        """Return the configuration in ``values``, read from ``where``; refuse other formats and missing fields."""
        try:
            _check_header(cls.kind, values)
            own = {name: value for name, value in values.items() if name not in _HEADER}
            known = known_fields(cls, own, "the configuration")
            for role in ("target", "draft"):
                known[role] = ModelIdentity.from_dict(known[role], f"`{role}`")
            if isinstance(rows := known.get("thresholds"), tuple):
                row = "a row of `thresholds`"
                known["thresholds"] = tuple(cls.row(**known_fields(cls.row, each, row)) for each in rows)
            return cls(**known)
        except LossyValueError as error:
            raise LossyValueError(f"{where}: {error}") from error


def _check_header(kind: str, values: Any) -> None:
    given = values if isinstance(values, Mapping) else {"model_type": values}
    if given.get("library_name") != LIBRARY:
        found = given.get("library_name") or given.get("model_type")
        raise LossyValueError(f"it is not the configuration of a head of {LIBRARY}, but of {brief(found)}")
    if given.get("type") != kind:
        raise LossyValueError(f"it is that of a {brief(given.get('type'))} head, but a {kind!r} head is wanted")
    SIZE.check("format_version", given.get("format_version"))
    if given["format_version"] > FORMAT_VERSION:
        raise LossyValueError(
            f"it has format version {given['format_version']}, but this version of {LIBRARY} reads up to "
            f"{FORMAT_VERSION}; upgrade {LIBRARY}"
        )
