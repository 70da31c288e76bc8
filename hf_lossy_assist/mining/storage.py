"""Mined data on disk: parquet shards, and a manifest that says where they come from.

A prompt is finished once its row stands in a ``prompts-*.parquet``; its labelled tokens are in the
``tokens-*.parquet`` of the same number, which is written before. Finished prompts are kept one by one and joined
into larger shards now and then, so a process may be killed at any moment. Beside every file there is its checksum;
what does not match it is set aside by the next run, which mines these prompts again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import LossyValueError, warn
from . import manifest as manifests
from .files import PARTIAL, checksum, write_whole
from .prompt_results import FAILED, Schemas

if TYPE_CHECKING:
    import datasets
    import pyarrow

T = TypeVar("T")

_NAME = re.compile(r"prompts-(\d+)-(\d+)-(\d+)\.parquet")
_PER_SHARD = 64
DAMAGED = ".damaged"
# Another process may join shards between our looking and our opening.
_ATTEMPTS = 5


@dataclass(frozen=True)
class Mined:
    """The rows of a folder of mined data, with the manifest: what was mined, from which models, by which runs.

    ``tokens`` has a row for each labelled token, ``prompts`` one for each finished prompt, with labels or without.
    """

    manifest: dict[str, Any]
    tokens: datasets.Dataset
    prompts: datasets.Dataset


def load_mined(folder: str | Path) -> Mined:
    """Read what ``lossy-assist mine`` has written, whether it has finished or not.

    Raises
    ------
    LossyValueError
        When the folder holds no mined data, none yet, or some that can't be read.
    """
    import datasets

    folder = Path(folder)
    manifest = manifests.read(folder)
    if not _shards(folder):
        raise LossyValueError(
            f"`folder` has to hold mined prompts, but {str(folder)!r} has none yet; repeat the `mine` command"
        )
    tokens, prompts = _patiently(lambda: _rows_that_count(folder))
    return Mined(manifest, datasets.Dataset(tokens), datasets.Dataset(prompts))


def prompt_rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of all finished prompts without their texts; none where nothing has been mined."""
    texts = {"prompt", "prompt_tokens", "first_response", "last_response", "answer"}
    tables = _patiently(lambda: [table for _, table in _prompts_that_count(folder)])
    kept = [table.drop_columns([*texts & {*table.column_names}]) for table in tables]
    return [row for table in kept for row in table.to_pylist()]


@dataclass(frozen=True, order=True)
class Shard:
    """A pair of files: the prompts that one process finished as its ``first`` … ``last``."""

    folder: Path
    process: int
    first: int
    last: int

    def path(self, table: str) -> Path:
        """Return the file of ``"tokens"`` or ``"prompts"``."""
        return self.folder / f"{table}-{self.process:03d}-{self.first:07d}-{self.last:07d}.parquet"

    def inside(self, other: Shard) -> bool:
        """Tell whether ``other`` has everything that is in this shard, and more."""
        return self != other and self.process == other.process and other.first <= self.first <= self.last <= other.last

    def damage(self) -> str | None:
        """Say what is wrong with one of the files, or None where both are as they were written."""
        for table in ("tokens", "prompts"):
            try:
                _read(self, table)
            except (FileNotFoundError, LossyValueError) as error:
                return str(error)
        return None

    def remove(self, kept_as: str | None = None) -> None:
        """Remove the files and their checksums; with ``kept_as``, files keep their content under a longer name."""
        for table in ("prompts", "tokens"):
            path = self.path(table)
            if kept_as is None:
                path.unlink(missing_ok=True)
            elif path.exists():
                path.replace(path.with_name(path.name + kept_as))
        for table in ("prompts", "tokens"):
            _checksum_of(self.path(table)).unlink(missing_ok=True)


class Store:
    """The finished prompts of one process, on disk, in a folder that all processes share.

    ``schemas`` has the tables ``"tokens"`` and ``"prompts"``. Entering is refused while another process with this
    number is at work in the folder, or others that share the prompts otherwise.
    """

    def __init__(self, folder: Path, process: int, schemas: Schemas, processes: int = 1) -> None:
        self.folder = folder
        self.process = process
        self.schemas = schemas
        self.processes = processes

    def __enter__(self) -> Store:
        from filelock import FileLock, Timeout

        with ExitStack() as stack:
            with FileLock(self.folder / manifests.LOCK):
                try:
                    stack.enter_context(FileLock(self._lock_of(self.process), timeout=0))
                except Timeout:
                    raise LossyValueError(
                        f"`out` has to be a folder that no other process mines into, but one is at work in "
                        f"{str(self.folder)!r}"
                    ) from None
                self._agree_with_others()
                for partial in self.folder.glob(f"*-{self.process:03d}-*{PARTIAL}"):
                    partial.unlink()
                self._set_damaged_aside()
            self._join()
            self._lock = stack.pop_all()
        return self

    def _lock_of(self, process: int) -> Path:
        return self.folder / f".process-{process}.lock"

    def _agree_with_others(self) -> None:
        """Refuse to mine beside processes that share the prompts otherwise, as some would be mined twice."""
        from filelock import FileLock, Timeout

        for note in self.folder.glob(".process-*.count"):
            process, count = int(note.name.split("-")[1].split(".")[0]), note.read_text()
            if process == self.process or count == str(self.processes):
                continue
            try:
                with FileLock(self._lock_of(process), timeout=0):
                    note.unlink()  # of a run that has ended
            except Timeout:
                raise LossyValueError(
                    f"`out` has to be a folder that no other run mines into, but processes that are {count} together "
                    f"are at work in {str(self.folder)!r}, and this run has {self.processes}; wait for them, or choose "
                    "another folder"
                ) from None
        write_whole(self.folder / f".process-{self.process}.count", str(self.processes).encode())

    def _set_damaged_aside(self) -> None:
        from filelock import FileLock, Timeout

        for shard in _all_shards(self.folder):
            own = shard.process == self.process
            # The files of a process that is at work are its own business.
            with suppress(Timeout), nullcontext() if own else FileLock(self._lock_of(shard.process), timeout=0):
                if (damage := shard.damage()) is not None:
                    warn(f"{damage}. Its prompts will be mined again.")
                    shard.remove(kept_as=DAMAGED)

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._join()

    def finished(self) -> set[int]:
        """Return the ids of the prompts that are finished, by whatever process. Failed ones may be tried again."""
        return {row["prompt_id"] for row in prompt_rows(self.folder) if row["status"] != FAILED}

    def add(self, prompt: Mapping[str, Any], tokens: Mapping[str, Any]) -> None:
        """Put one prompt on the disk: its row, and its labelled tokens column by column."""
        number = 1 + max((shard.last for shard in self._own()), default=-1)
        labels = len(next(iter(tokens.values()), ()))
        rows = {
            "prompts": {name: [value] for name, value in prompt.items()},
            "tokens": {"prompt_id": [prompt["prompt_id"]] * labels, **tokens},
        }
        self._write(Shard(self.folder, self.process, number, number), {t: self._table(t, rows[t]) for t in rows})
        if sum(shard.first == shard.last for shard in self._own()) >= _PER_SHARD:
            self._join()

    def _table(self, name: str, columns: Mapping[str, Any]) -> pyarrow.Table:
        import pyarrow

        schema = self.schemas[name]
        # A prompt that gave no labels has nothing but its own columns.
        rows = len(next(iter(columns.values()), ()))
        arrays = [
            _array(columns[field.name], field.type) if field.name in columns else pyarrow.nulls(rows, field.type)
            for field in schema
        ]
        return pyarrow.table(arrays, schema=schema)

    def _own(self) -> list[Shard]:
        return [shard for shard in _shards(self.folder) if shard.process == self.process]

    def _join(self) -> None:
        """Make one shard of the latest single prompts, and remove what larger shards have."""
        import pyarrow

        single = [shard for shard in self._own() if shard.first == shard.last]
        if len(single) > 1:
            joined = Shard(self.folder, self.process, single[0].first, single[-1].last)
            tables = {table: [_read(shard, table) for shard in single] for table in ("tokens", "prompts")}
            self._write(joined, {table: pyarrow.concat_tables(parts) for table, parts in tables.items()})
        everything = _all_shards(self.folder)
        for shard in everything:
            if shard.process == self.process and any(shard.inside(other) for other in everything):
                shard.remove()

    def _write(self, shard: Shard, tables: Mapping[str, pyarrow.Table]) -> None:
        import pyarrow
        from pyarrow import parquet

        # The prompts come last: they make a shard count.
        for name in ("tokens", "prompts"):
            path, content = shard.path(name), pyarrow.BufferOutputStream()
            parquet.write_table(tables[name], content)
            written = content.getvalue().to_pybytes()
            # As `sha256sum --check` reads it.
            write_whole(_checksum_of(path), f"{checksum(written)}  {path.name}\n".encode())
            write_whole(path, written)


def _checksum_of(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _array(values: Any, kind: pyarrow.DataType) -> pyarrow.Array:
    import pyarrow

    if pyarrow.types.is_fixed_size_list(kind):
        return pyarrow.FixedSizeListArray.from_arrays(
            pyarrow.array(values.reshape(-1), kind.value_type), kind.list_size
        )
    return pyarrow.array(values, kind)


def _all_shards(folder: Path) -> list[Shard]:
    found = [_NAME.fullmatch(path.name) for path in folder.glob("prompts-*.parquet")]
    return sorted(Shard(folder, *map(int, match.groups())) for match in found if match)


def _shards(folder: Path) -> list[Shard]:
    """Return the shards that count: those that no larger one contains."""
    shards = _all_shards(folder)
    return [shard for shard in shards if not any(shard.inside(other) for other in shards)]


def _read(shard: Shard, table: str) -> pyarrow.Table:
    import pyarrow
    from pyarrow import parquet

    path = shard.path(table)
    content = path.read_bytes()
    try:
        if (noted := _checksum_of(path)).is_file() and noted.read_text()[:64] != checksum(content):
            raise ValueError("it is not what its checksum was taken of")
        return parquet.read_table(pyarrow.BufferReader(content))
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise LossyValueError(
            f"`folder` has to hold whole shards, but {str(path)!r} can't be read ({error}); repeat the `mine` command, "
            "which mines its prompts again"
        ) from error


def _patiently(read: Callable[[], T]) -> T:
    missing: FileNotFoundError | None = None
    for _ in range(_ATTEMPTS):
        try:
            return read()
        except FileNotFoundError as error:
            missing = error
    raise LossyValueError(
        f"`folder` has to hold whole shards, but one is missing: {missing}; repeat the `mine` command, which mines its "
        "prompts again"
    ) from missing


def _rows_that_count(folder: Path) -> tuple[pyarrow.Table, pyarrow.Table]:
    """Return the tokens and the prompts of a folder, of prompts that were mined several times only once."""
    import pyarrow
    from pyarrow import compute

    prompts = _prompts_that_count(folder)
    tokens = []
    for shard, table in prompts:
        rows = _read(shard, "tokens")
        tokens.append(rows.filter(compute.is_in(rows["prompt_id"], table["prompt_id"].combine_chunks())))
    return pyarrow.concat_tables(tokens), pyarrow.concat_tables([table for _, table in prompts])


def _prompts_that_count(folder: Path) -> list[tuple[Shard, pyarrow.Table]]:
    """Return each shard with the rows of its prompts that count: a prompt's latest that did not fail, else its latest.

    A prompt may have been mined several times, for example after it failed.
    """
    import pyarrow

    tables = [(shard, _read(shard, "prompts")) for shard in _shards(folder)]
    latest: dict[int, tuple[Shard, int]] = {}
    failed: dict[int, bool] = {}
    for shard, table in tables:
        rows = zip(table["prompt_id"].to_pylist(), table["status"].to_pylist(), strict=True)
        for row, (prompt, status) in enumerate(rows):
            if status != FAILED or failed.get(prompt, True):
                latest[prompt], failed[prompt] = (shard, row), status == FAILED
    kept: dict[Shard, list[int]] = {shard: [] for shard, _ in tables}
    for shard, row in sorted(latest.values()):
        kept[shard].append(row)
    return [(shard, table.take(pyarrow.array(kept[shard], pyarrow.int64()))) for shard, table in tables]
