"""The ``config.json`` of heads: what it holds, and how it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, TypeVar

from ..errors import LossyValueError
from .checks import (
    LIBRARY,
    brief,
    check_mapping,
    check_probability,
    check_sequence,
    check_size,
    check_text,
    is_number,
    known_fields,
    require,
)
from .identity import ModelIdentity

FORMAT_VERSION = 1
"""Goes up when an older version of this package could misread a head."""

_C = TypeVar("_C", bound="HeadConfig")
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The configuration that heads of all kinds have in common.

    Parameters
    ----------
    target, draft
        The models that the head was trained for.
    task
        The name of the task whose prompts it was trained on. Heads transfer badly between tasks.
    threshold
        The probability at which the head decides, between 0 and 1.
    thresholds
        Other thresholds, and what each of them would do on validation data.
    metrics
        Figures by name, such as the validation ``auc``.
    results
        Rows of the model card's table of accuracy and speed on a test split, one mapping each, all with the same
        keys.
    provenance
        How the head came about: versions, command line, seeds.
    """

    target: ModelIdentity
    draft: ModelIdentity
    task: str
    threshold: float
    thresholds: tuple[Any, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    results: tuple[Mapping[str, Any], ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)

    kind: ClassVar[str]
    rule: ClassVar[str]
    row: ClassVar[type]

    def __post_init__(self) -> None:
        check_text("task", self.task)
        check_probability("threshold", self.threshold)
        for name in ("metrics", "provenance"):
            check_mapping(name, getattr(self, name))
        require(all(map(is_number, self.metrics.values())), "metrics", "numbers by name", self.metrics)
        for row in self.results:
            check_mapping("results", row)
        if len({tuple(row) for row in self.results}) > 1:
            raise LossyValueError("`results` has to have the same columns in every row")

    @property
    def width(self) -> int:
        """How many numbers the head reads per token."""
        raise NotImplementedError

    @property
    def reads(self) -> str:
        """What the head reads, in words."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as it stands in ``config.json``."""
        header = {"library_name": LIBRARY, "format_version": FORMAT_VERSION, "type": self.kind}
        return header | asdict(self)

    @classmethod
    def from_dict(cls: type[_C], values: Any, where: str = "config.json") -> _C:
        """Return the configuration in ``values``, which came from ``where``.

        Refuses the configuration of something else, of a newer format, or without a required field.
        """
        try:
            return cls._from_values(_checked_header(cls.kind, values))
        except LossyValueError as error:
            raise LossyValueError(f"{where}: {error}") from error

    @classmethod
    def _from_values(cls: type[_C], values: Mapping[str, Any]) -> _C:
        known = known_fields(cls, values, "the configuration")
        for role in ("target", "draft"):
            known[role] = ModelIdentity.from_dict(known[role], f"`{role}`")
        for name in ("thresholds", "results"):
            check_sequence(name, known.get(name, ()))
        rows = known.get("thresholds", ())
        known["thresholds"] = tuple(cls.row(**known_fields(cls.row, row, "a row of `thresholds`")) for row in rows)
        known["results"] = tuple(known.get("results", ()))
        return cls(**known)


def _checked_header(kind: str, values: Any) -> dict[str, Any]:
    if not isinstance(values, Mapping) or values.get("library_name") != LIBRARY:
        found = values.get("library_name") or values.get("model_type") if isinstance(values, Mapping) else values
        raise LossyValueError(f"it is not the configuration of a head of {LIBRARY}, but of {brief(found)}")
    if values.get("type") != kind:
        raise LossyValueError(f"it is that of a {brief(values.get('type'))} head, but a {kind!r} head is wanted")
    check_size("format_version", values.get("format_version"))
    if values["format_version"] > FORMAT_VERSION:
        raise LossyValueError(
            f"it has format version {values['format_version']}, but this version of {LIBRARY} reads up to "
            f"{FORMAT_VERSION}; upgrade {LIBRARY}"
        )
    return {k: v for k, v in values.items() if k not in ("library_name", "format_version", "type", "weights_sha256")}
