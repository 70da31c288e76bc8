"""Scored answers of decoding modes, in memory and in a folder that an interrupted run goes on with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ..errors import LossyValueError
from ..mining.files import write_whole

RESULTS, MANIFEST = "results.jsonl", "manifest.json"


@dataclass(frozen=True)
class Answer:
    """One mode's answer to one problem: a line of ``results.jsonl``."""

    mode: str  # its label
    id: int  # the problem's number in its split
    score: float  # from 0 to 1
    tokens: int
    # Rounds of the text, and drafted tokens kept in all of them; for the target alone a token is a round.
    rounds: int
    accepted: int
    seconds: float  # of the call of ``generate()``, shared equally by its rows
    text: str
    lossy: int = 0  # drafted tokens that only the rule kept, not the lossless one


class AnswerStore:
    """Answers by mode and problem; with a folder, each is on disk before the next is made.

    ``plan`` has what the answers depend on. In a folder with answers of another plan, a store refuses to open, but for
    three things that may be added to: the modes, the problems, and the runs. Several processes may have a folder's
    store open.
    """

    def __init__(self, folder: Path | None = None, plan: Mapping[str, Any] | None = None) -> None:
        self.folder = folder
        self.known: dict[tuple[str, int], Answer] = {}
        self._lock: AbstractContextManager[Any] | None = None
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise LossyValueError(f"`out` has to be a folder that can be written to: {error}") from error
            with self.locked():
                self._agree(dict(plan or {}))
            self.refresh()

    def locked(self) -> AbstractContextManager[Any]:
        """Keep other processes from writing to the folder inside a block."""
        from filelock import FileLock

        if self._lock is None:  # one, which its holder may take again
            self._lock = nullcontext() if self.folder is None else FileLock(self.folder / ".lock")
        return self._lock

    def add(self, answers: Sequence[Answer]) -> None:
        """Take more answers in."""
        self.known |= {(answer.mode, answer.id): answer for answer in answers}
        if self.folder is None:
            return
        lines = "".join(json.dumps(asdict(answer), ensure_ascii=False) + "\n" for answer in answers)
        with self.locked(), (self.folder / RESULTS).open("r+b") as file:
            file.seek(len(_whole_lines(file.read())))
            file.truncate()  # half a line, of a process that was killed
            file.write(lines.encode())

    def refresh(self) -> None:
        """Read what is in the folder: other processes may have added to it."""
        if self.folder is None:
            return
        path = self.folder / RESULTS
        with self.locked():
            path.touch()
            lines = _whole_lines(path.read_bytes()).splitlines()
        for number, line in enumerate(lines, 1):
            answer = _answer(line, f"line {number} of {str(path)!r}")
            self.known[answer.mode, answer.id] = answer

    def write(self, name: str, value: Any) -> None:
        """Write a JSON file into the folder."""
        write_whole(self.folder / name, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())

    def _agree(self, plan: dict[str, Any]) -> None:
        path = self.folder / MANIFEST
        plan = json.loads(json.dumps(plan))
        if path.exists():
            before = _manifest(path)
            differences = _differences(before, plan)
            if differences:
                raise LossyValueError(
                    f"`out` has to be a new folder or hold answers of the same settings, but in {str(self.folder)!r} "
                    f"{'; '.join(differences)}; choose another folder"
                )
            plan["modes"] = {**before["modes"], **plan["modes"]}
            plan["problems"] = max(before["problems"], plan["problems"], key=len)
            plan["runs"] = before["runs"] + plan["runs"]
        elif (self.folder / RESULTS).exists():
            raise LossyValueError(f"`out` has to be a new folder, but {str(self.folder)!r} has a {RESULTS} of others")
        self.write(MANIFEST, plan)


def load_answers(folder: str | Path) -> tuple[dict[str, Any], list[Answer]]:
    """Return the manifest and the answers of a folder that an evaluation has written, finished or not.

    Raises
    ------
    LossyValueError
        When the folder was not written by an evaluation.
    """
    folder = Path(folder)
    lines = _whole_lines((folder / RESULTS).read_bytes()).splitlines() if (folder / RESULTS).is_file() else []
    return _manifest(folder / MANIFEST), [_answer(line, f"line {i} of {RESULTS}") for i, line in enumerate(lines, 1)]


def _whole_lines(content: bytes) -> bytes:
    return content[: content.rfind(b"\n") + 1]


def _answer(line: bytes, where: str) -> Answer:
    try:
        return Answer(**json.loads(line))
    except (TypeError, ValueError) as error:
        names = [x.name for x in fields(Answer)]
        raise LossyValueError(f"`out` has to hold answers with the fields {names}, but {where} has not") from error


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if not {"modes", "problems", "runs"} <= manifest.keys():
            raise ValueError("it has other fields")
    except (OSError, ValueError, AttributeError) as error:
        raise LossyValueError(f"the folder has to be of an evaluation, but {str(path)!r}: {error}") from error
    return manifest


def _differences(before: Mapping[str, Any], plan: Mapping[str, Any]) -> list[str]:
    names = sorted((before.keys() | plan.keys()) - {"modes", "problems", "runs"})
    found = _changes(names, before, plan)
    found += _changes(before["modes"].keys() & plan["modes"].keys(), before["modes"], plan["modes"])
    if any(a != b for a, b in zip(before["problems"], plan["problems"], strict=False)):
        found.append("the problems are other ones")
    return found


def _changes(names: Iterable[str], before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    changed = [name for name in names if before.get(name) != now.get(name)]
    return [f"`{name}` was {before.get(name)!r} and is {now.get(name)!r}" for name in changed]
