"""Scored answers of decoding modes, in memory and in a folder that an interrupted run goes on with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from ..errors import LossyValueError
from ..store.folder import (
    MANIFEST,
    append_lines,
    changes,
    folder_lock,
    read_lines,
    read_manifest,
    refuse,
    write_json,
)
from ..values import COUNT, PROBABILITY, Checked, Count, Flag, Rule, Text, from_json, is_number, or_none
from .requests import Stages

RESULTS, COSTS = "results.jsonl", "costs.json"
_KINDS = {"modes": dict, "problems": list, "runs": list}
_AMOUNT = Rule("a number >= 0", lambda x: is_number(x) and x >= 0)
_SECONDS = Annotated[float | None, or_none(_AMOUNT)]
_LISTED = Rule("a list of numbers >= 0", lambda x: isinstance(x, list) and all(map(_AMOUNT.holds, x)))
_PARTS = or_none(Rule(
    "the stages of a call",
    lambda x: isinstance(x, dict) and x.keys() == {each.name for each in fields(Stages)}
    and all(value is None or is_number(value) for value in x.values()),
))  # fmt: skip
_KNOWN = Annotated[int | None, or_none(COUNT)]


@dataclass(frozen=True)
class Answer(Checked):
    """One mode's answer to one problem: a line of ``results.jsonl``."""

    mode: Text  # its label
    id: Count  # the problem's number in its split
    score: Annotated[float | None, or_none(PROBABILITY)]  # None if answers are only timed
    tokens: Count
    # Rounds of the text, and drafted tokens kept in all of them; for the target alone a token is a round.
    rounds: Count
    accepted: Count
    # Of the call of ``generate()``, shared equally by its rows: the median, if it was repeated. None if not timed.
    seconds: _SECONDS
    text: Text
    lossy: Count = 0  # drafted tokens that only the rule kept, not the lossless one
    cut: Flag = False  # whether its length's limit ended it
    # None in older files.
    prompt: _KNOWN = None  # tokens
    drafted: _KNOWN = None  # tokens
    memory: _KNOWN = None  # peak of its call in bytes, weights included
    repeats: tuple[float, ...] = ()  # the seconds of each call, if there were several
    joules: _SECONDS = None  # of a call, shared like its seconds, where the GPU's energy is counted
    stages: Stages | None = None  # of one more call; beside the first answer of a batch
    ids: tuple[int, ...] = ()  # its tokens, where those of the text are others

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Answer:
        """Return the answer that a line has."""
        lists, stages = {name: values.get(name, []) for name in ("repeats", "ids")}, values.get("stages")
        for name, numbers in lists.items():
            _LISTED.check(name, numbers)
        _PARTS.check("stages", stages)
        own = {name: tuple(numbers) for name, numbers in lists.items()}
        return cls(**{**values, **own, "stages": None if stages is None else Stages(**stages)})


def by_mode(answers: Iterable[Answer]) -> dict[str, dict[int, Answer]]:
    """Return answers by the mode's label and the problem's number."""
    found: dict[str, dict[int, Answer]] = {}
    for answer in answers:
        found.setdefault(answer.mode, {})[answer.id] = answer
    return found


class AnswerStore:
    """Answers by mode and problem; with a folder, each is on disk before the next is made.

    ``plan`` names everything that the answers depend on. Opening a folder raises if its plan differs. Only modes,
    problems and runs may be added. Several processes may have a folder's store open.
    """

    def __init__(self, folder: Path | None = None, plan: Mapping[str, Any] | None = None) -> None:
        self.folder = folder
        self.known: dict[tuple[str, int], Answer] = {}
        self.costs: dict[str, Any] = {}  # what rounds cost: the machine, and seconds by mode
        # Keeps other processes from writing to the folder inside a block.
        self.lock = nullcontext() if folder is None else folder_lock(folder, ".lock")
        if folder is not None:
            with self.lock:
                self._agree(dict(plan or {}))
            self.refresh()

    def add(self, answers: Sequence[Answer]) -> None:
        """Add answers; those that are there already stay."""
        answers = [answer for answer in answers if (answer.mode, answer.id) not in self.known]
        self.known |= {(answer.mode, answer.id): answer for answer in answers}
        if self.folder is not None:
            with self.lock:
                append_lines(self.folder / RESULTS, map(asdict, answers))

    def refresh(self) -> None:
        """Read the folder again: other processes may have added answers."""
        if self.folder is not None:
            with self.lock:
                self.known |= {(answer.mode, answer.id): answer for answer in _answers(self.folder)}
            if (self.folder / COSTS).exists():
                self.costs = from_json((self.folder / COSTS).read_bytes(), f"`out`: {COSTS}")

    def keep_costs(self, costs: dict[str, Any]) -> None:
        self.costs = costs
        if self.folder is not None:
            self.write(COSTS, costs)

    def write(self, name: str, value: Any) -> None:
        write_json(self.folder / name, value)

    def _agree(self, plan: dict[str, Any]) -> None:
        plan = json.loads(json.dumps(plan))
        if (self.folder / MANIFEST).exists():
            before = read_plan(self.folder)
            found = changes(before, plan, sorted((before.keys() | plan.keys()) - _KINDS.keys()))
            found += changes(before["modes"], plan["modes"], sorted(before["modes"].keys() & plan["modes"].keys()))
            other = any(a != b for a, b in zip(before["problems"], plan["problems"], strict=False))
            refuse(self.folder, [*found, *(["the problems are other ones"] if other else [])])
            plan["modes"] = {**before["modes"], **plan["modes"]}
            plan["problems"] = max(before["problems"], plan["problems"], key=len)
            plan["runs"] = before["runs"] + plan["runs"]
        elif (self.folder / RESULTS).exists():
            raise LossyValueError(
                f"`out` has to be a new folder, but {str(self.folder)!r} has a {RESULTS} without a {MANIFEST}"
            )
        self.write(MANIFEST, plan)


def load_answers(folder: str | Path) -> tuple[dict[str, Any], list[Answer]]:
    """Return the manifest and the answers of a folder that an evaluation has written, finished or not.

    Raises
    ------
    LossyValueError
        When the folder was not written by an evaluation.
    """
    return read_plan(Path(folder)), _answers(Path(folder))


def read_plan(folder: Path, argument: str = "folder") -> dict[str, Any]:
    """Return the manifest of a folder that an evaluation has written."""
    return read_manifest(folder, "evaluate", _KINDS, argument)


def _answers(folder: Path) -> list[Answer]:
    answers: dict[tuple[str, int], Answer] = {}
    for number, row in read_lines(folder / RESULTS):
        where = f"line {number} of {str(folder / RESULTS)!r}"
        try:
            answer = Answer.of(row)
        except (LossyValueError, TypeError) as error:
            found = f"in {where}: {error!s:.300}"
            names = [x.name for x in fields(Answer)]
            raise LossyValueError(f"`out` has to hold answers with {names}, but {found}") from error
        before = answers.setdefault((answer.mode, answer.id), answer)
        if (before.score, before.text) != (answer.score, answer.text):
            raise LossyValueError(
                f"`out` has to hold one answer of a mode to a problem, but {where} has another one of {answer.mode!r} "
                f"to problem {answer.id}, scored {answer.score} and not {before.score}; delete the wrong line"
            )
    return [*answers.values()]
