"""Names that earlier versions had, and what to use instead. An error tells users for one release."""

from __future__ import annotations

from collections.abc import Mapping

from .errors import LossyValueError

GONE: Mapping[str, Mapping[str, str]] = {
    "command": {},
    "option": {},
    "rule": {},
    "key of `lossy_config`": {},
    "import": {},
    "task": {},
    "pair": {},
}
"""By kind, each old spelling and the sentence that names its replacement; docs/migration.md lists them all."""


def check_gone(kind: str, name: str) -> None:
    """Raise :class:`LossyValueError` if a name has been removed; the message names its replacement.

    Examples
    --------
    >>> check_gone("rule", "lossless")
    """
    if (instead := GONE[kind].get(name)) is not None:
        raise LossyValueError(f"the {kind} {name!r} was removed: {instead}")
