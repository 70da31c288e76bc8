"""Rows by key, with arrays beside them: in memory, or in a folder that an interrupted run goes on with.

A folder has a manifest with the plan that all rows depend on, a file with one JSON line a row, and for each row with
arrays a file of its own. A row's arrays are whole on the disk before its line is written, and the line has their
SHA-256. So a process may be killed at any moment.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from safetensors.numpy import load, save

from ..errors import LossyValueError, brief, warn
from .folder import MANIFEST, append_lines, folder_lock, read_lines, read_manifest, write_json, write_whole

Row = TypeVar("Row")
_ARRAYS, _RUNS = "arrays", "runs"


class Records(Generic[Row]):
    """Rows of one kind; each kind is a subclass, which says what rows are and how they are told apart.

    Opening a folder with a ``plan`` raises where that differs from the folder's, except in what may grow. Its ``runs``
    are added to those that are there. Without a plan, a folder is only read. Of rows with equal keys the latest counts.
    Several processes may have a folder open. Columns that rows do not have are not read.

    Attributes
    ----------
    row_type
        The dataclass of a row, whose fields check themselves.
    keys
        The fields that tell rows apart.
    command
        The subcommand that writes such folders.
    file
        The name of the file with the lines.
    kinds
        Types of the manifest's values that have to be there.
    growing
        Values of the plan that a later run may extend: objects by keys, and lists at their end.
    argument
        What names a folder that is read.
    """

    row_type: ClassVar[type]
    keys: ClassVar[tuple[str, ...]] = ("id",)
    command: ClassVar[str]
    file: ClassVar[str]
    kinds: ClassVar[Mapping[str, Any]] = {}
    growing: ClassVar[frozenset[str]] = frozenset()
    argument: ClassVar[str] = "folder"

    def __init__(self, folder: Path | None = None, plan: Mapping[str, Any] | None = None) -> None:
        self.folder, self.plan = folder, dict(plan or {})
        self._rows: dict[Any, Row] = {}
        self._arrays: dict[Any, Any] = {}  # in memory the arrays of each key, in a folder their SHA-256
        # Keeps other processes from writing to the folder inside a block.
        self.lock = nullcontext() if folder is None or plan is None else folder_lock(folder)
        if folder is not None:
            with self.lock:
                self.plan = self._manifest(self.argument) if plan is None else self._agree(self.plan)
            self.refresh()

    def __iter__(self) -> Iterator[Row]:
        return iter([*self._rows.values()])

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: Any) -> bool:
        return key in self._rows

    def __getitem__(self, key: Any) -> Row:
        return self._rows[key]

    def key(self, row: Row) -> Any:
        """Return the value, or the values, that tell a row apart."""
        found = tuple(getattr(row, name) for name in self.keys)
        return found if len(found) > 1 else found[0]

    def done(self) -> set[Any]:
        """Return the keys of all rows whose arrays are whole; of the others, a warning tells."""
        for key in [*self._arrays]:
            try:
                self.arrays(key)
            except LossyValueError as error:
                warn(str(error))
                del self._rows[key], self._arrays[key]
        return {*self._rows}

    def add(self, row: Row, **arrays: np.ndarray) -> None:
        """Add a row with its arrays; in a folder, both are on the disk before this returns."""
        key = self.key(row)
        self._rows[key] = row
        self._arrays.pop(key, None)
        if arrays:
            self._arrays[key] = arrays
        if self.folder is None:
            return
        values = asdict(row)
        with self.lock:
            if arrays:
                content = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
                write_whole(self._path(key), content)
                values[_ARRAYS] = self._arrays[key] = hashlib.sha256(content).hexdigest()
            append_lines(self.folder / self.file, [values])

    def arrays(self, key: Any) -> dict[str, np.ndarray]:
        """Return the arrays of a row; raise where they are damaged."""
        found = self._arrays.get(key, {})
        if self.folder is None or not found:
            return found
        path = self._path(key)
        content = path.read_bytes() if path.is_file() else b""
        if hashlib.sha256(content).hexdigest() != found:
            raise LossyValueError(
                f"`{self.argument}` has to hold whole rows, but {str(path)!r} is missing or damaged; repeat the "
                f"`{self.command}` command, which makes it again"
            )
        return load(content)

    def refresh(self) -> None:
        """Read the folder again: other processes may have added rows."""
        if self.folder is None:
            return
        names = [field.name for field in fields(self.row_type)]
        with self.lock:
            for number, values in read_lines(self.folder / self.file):
                digest = values.pop(_ARRAYS, None)
                known = {k: tuple(x) if isinstance(x, list) else x for k, x in values.items() if k in names}
                try:
                    row = self.row_type(**known)
                except (LossyValueError, TypeError) as error:
                    raise LossyValueError(
                        f"`out` has to hold rows with {names}, but in line {number} of "
                        f"{str(self.folder / self.file)!r}: {error!s:.300}"
                    ) from error
                key = self.key(row)
                self._rows[key] = row
                self._arrays.pop(key, None)
                if digest is not None:
                    self._arrays[key] = digest

    def _path(self, key: Any) -> Path:
        name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
        return self.folder / f"{Path(self.file).stem}-{name}.safetensors"

    def _manifest(self, argument: str) -> dict[str, Any]:
        return read_manifest(self.folder, self.command, {**self.kinds, _RUNS: list}, argument)

    def _agree(self, plan: dict[str, Any]) -> dict[str, Any]:
        """Compare a plan with the folder's, and write what both are together."""
        plan = {_RUNS: [], **json.loads(json.dumps(plan))}
        if (self.folder / MANIFEST).exists():
            before, found = self._manifest("out"), []
            for name in sorted(before.keys() | plan.keys()):
                old, new = before.get(name), plan.get(name)
                if name == _RUNS:
                    plan[name] = [*old, *new]
                elif isinstance(old, dict) and isinstance(new, dict):
                    keys = old.keys() & new.keys() if name in self.growing else old.keys() | new.keys()
                    found += [
                        f"`{key}` of `{name}` was {old.get(key)!r} and is {new.get(key)!r}"
                        for key in sorted(keys)
                        if old.get(key) != new.get(key)
                    ]
                    plan[name] = {**old, **new}
                elif name in self.growing and old is not None:
                    found += [f"the {name} are other ones"] * any(a != b for a, b in zip(old, new, strict=False))
                    plan[name] = max(old, new, key=len)
                elif old != new:
                    found.append(f"`{name}` was {brief(old)} and is {brief(new)}")
            if found:
                raise LossyValueError(
                    f"`out` has to be a new folder or hold data of the same settings, but in {str(self.folder)!r} "
                    f"{'; '.join(found)}; choose another folder"
                )
        elif (self.folder / self.file).exists():
            raise LossyValueError(
                f"`out` has to be a new folder, but {str(self.folder)!r} has a {self.file} without a {MANIFEST}"
            )
        write_json(self.folder / MANIFEST, plan)
        return plan
