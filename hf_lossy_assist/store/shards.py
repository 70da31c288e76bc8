"""Finished prompts in parquet shards, each a file of prompts and one of their labelled tokens.

A prompt is finished once its row stands in a ``prompts-*.parquet``; its tokens are in the ``tokens-*.parquet`` of the
same number, which is written before. Each finished prompt is a shard of its own at first; now and then they are joined
into larger ones. So a process may be killed at any moment: if a prompt is there twice, one copy counts. Every file has
its checksum beside it. The next run sets files aside that do not match theirs, and mines their prompts again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import compute, parquet

from ..errors import LossyValueError, warn
from .folder import PARTIAL, Process, claimed, folder_lock, process_lock, write_whole

FAILED = "failed"
LOCK, DAMAGED = ".manifest.lock", ".damaged"
TABLES = ("tokens", "prompts")  # the prompts come last: they make a shard count
_PER_SHARD = 64
_ATTEMPTS = 5


@dataclass(eq=False)
class ShardStore:
    """The finished prompts of one process, on disk, in a folder that all processes share.

    ``schemas`` has the tables ``"tokens"`` and ``"prompts"``. Entering is refused while a process with the same number,
    or a run of another number of processes, is at work in the folder.
    """

    folder: Path
    process: int
    schemas: Mapping[str, pyarrow.Schema]
    processes: int = 1

    def __enter__(self) -> ShardStore:
        with folder_lock(self.folder, LOCK), ExitStack() as stack:
            stack.enter_context(claimed(self.folder, Process(self.process, self.processes)))
            for partial in self.folder.glob(f"*-{self.process:03d}-*{PARTIAL}"):
                partial.unlink()
            for shard in _shards(self.folder):
                own = shard.process == self.process
                # A process that is at work checks its own files.
                with (
                    suppress(LossyValueError),
                    nullcontext() if own else process_lock(self.folder, shard.process, self.processes),
                ):
                    shard.set_aside_if_damaged()
            self._join()
            self._lock = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._join()

    def finished(self) -> set[int]:
        """Return the ids of the prompts that any process has finished; failed ones may be tried again."""
        return {row["prompt_id"] for row in prompt_rows(self.folder) if row["status"] != FAILED}

    def add(self, prompt: Mapping[str, Any], tokens: Mapping[str, Any]) -> None:
        """Write one prompt: its row, and the columns of its labelled tokens."""
        labels = [dict(zip(tokens, row, strict=True)) for row in zip(*tokens.values(), strict=True)]
        rows = {"prompts": [prompt], "tokens": [{"prompt_id": prompt["prompt_id"], **label} for label in labels]}
        tables = {table: pyarrow.Table.from_pylist(rows[table], schema) for table, schema in self.schemas.items()}
        own = _shards(self.folder, self.process)
        number = 1 + max((shard.last for shard in own), default=-1)
        _Shard(self.folder, self.process, number, number).write(tables)
        if sum(shard.first == shard.last for shard in own) + 1 >= _PER_SHARD:
            self._join()

    def _join(self) -> None:
        """Make one shard of the single prompts, and remove the single ones that a larger shard has."""
        own = _shards(self.folder, self.process)
        joined = [shard for shard in own if shard.first < shard.last]
        single = [shard for shard in own if not any(larger.first <= shard.first <= larger.last for larger in joined)]
        if len(single) > 1:
            joined.append(_Shard(self.folder, self.process, single[0].first, single[-1].last))
            joined[-1].write({table: pyarrow.concat_tables([one.read(table) for one in single]) for table in TABLES})
            single = []
        for shard in {*own} - {*joined} - {*single}:
            shard.remove()


def prompt_rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of all finished prompts without their texts; none if nothing has been mined."""
    texts = {"prompt", "prompt_tokens", "first_response", "last_response", "answer"}
    tables = [part["prompts"] for part in rows_that_count(folder, ["prompts"])]
    return [row for table in tables for row in table.drop_columns([*texts & {*table.column_names}]).to_pylist()]


def rows_that_count(folder: Path, names: Sequence[str] = TABLES) -> list[dict[str, pyarrow.Table]]:
    """Read every shard, and keep one row of each prompt: its latest success, or its latest failure without any."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            parts = [{name: shard.read(name) for name in names} for shard in _shards(folder)]
            break
        except FileNotFoundError as error:  # another process may have joined shards since we looked
            if attempt == _ATTEMPTS:
                raise LossyValueError(
                    f"`folder` has to hold whole shards, but one is missing: {error}; repeat the `mine` command, which "
                    "mines its prompts again"
                ) from error
    latest: dict[int, tuple[bool, int, int]] = {}
    for place, part in enumerate(parts):
        columns = (part["prompts"][name].to_pylist() for name in ("prompt_id", "status"))
        for row, (prompt, status) in enumerate(zip(*columns, strict=True)):
            latest[prompt] = max(latest.get(prompt, (False, -1, -1)), (status != FAILED, place, row))
    kept: list[list[int]] = [[] for _ in parts]
    for _, place, row in latest.values():
        kept[place].append(row)
    for part, rows in zip(parts, kept, strict=True):
        part["prompts"] = part["prompts"].take(pyarrow.array(sorted(rows), pyarrow.int64()))
        if "tokens" in part:
            wanted = part["prompts"]["prompt_id"].combine_chunks()
            part["tokens"] = part["tokens"].filter(compute.is_in(part["tokens"]["prompt_id"], wanted))
    return parts


@dataclass(frozen=True, order=True)
class _Shard:
    """A pair of files: the prompts that one process finished as its ``first`` … ``last``."""

    folder: Path
    process: int
    first: int
    last: int

    def path(self, table: str, ending: str = "") -> Path:
        return self.folder / f"{table}-{self.process:03d}-{self.first:07d}-{self.last:07d}.parquet{ending}"

    def read(self, table: str) -> pyarrow.Table:
        path, noted = self.path(table), self.path(table, ".sha256")
        content = path.read_bytes()
        try:
            if noted.is_file() and noted.read_text()[:64] != hashlib.sha256(content).hexdigest():
                raise ValueError("it does not match its checksum")
            return parquet.read_table(pyarrow.BufferReader(content))
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            raise LossyValueError(
                f"`folder` has to hold whole shards, but {str(path)!r} can't be read ({error}); repeat the `mine` "
                "command, which mines its prompts again"
            ) from error

    def write(self, tables: Mapping[str, pyarrow.Table]) -> None:
        for table in TABLES:
            stream, path = pyarrow.BufferOutputStream(), self.path(table)
            parquet.write_table(tables[table], stream)
            content = stream.getvalue().to_pybytes()
            noted = f"{hashlib.sha256(content).hexdigest()}  {path.name}\n"  # as `sha256sum --check` reads it
            write_whole(self.path(table, ".sha256"), noted.encode())
            write_whole(path, content)

    def set_aside_if_damaged(self) -> None:
        try:
            for table in TABLES:
                self.read(table)
        except (FileNotFoundError, LossyValueError) as error:
            warn(f"{error}. Its prompts will be mined again.")
            for table in TABLES:
                with suppress(FileNotFoundError):
                    self.path(table).replace(self.path(table, DAMAGED))
            self.remove()

    def remove(self) -> None:
        for ending in ("", ".sha256"):
            for table in reversed(TABLES):
                self.path(table, ending).unlink(missing_ok=True)


def _shards(folder: Path, process: int | None = None) -> list[_Shard]:
    names = [re.fullmatch(r"prompts-(\d+)-(\d+)-(\d+)\.parquet", path.name) for path in folder.glob("prompts-*")]
    shards = sorted(_Shard(folder, *map(int, name.groups())) for name in names if name)
    return [shard for shard in shards if process in (None, shard.process)]
