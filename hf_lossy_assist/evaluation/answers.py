"""Scored answers of decoding modes, in memory and in a folder that an interrupted run goes on with; and where they were
made."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import torch

from ..compat.models import versions_of
from ..store.folder import command_line, without_folders
from ..store.records import Records
from ..values import COUNT, PROBABILITY, Checked, Count, Flag, Rule, Text, is_number
from ..version import __version__

RESULTS = "results.jsonl"
_AMOUNT = Rule("a number >= 0", lambda x: is_number(x) and x >= 0)
_Listed = Annotated[
    tuple[float, ...], Rule("a list of numbers >= 0", lambda x: isinstance(x, tuple) and all(map(_AMOUNT.holds, x)))
]
_KNOWN = Annotated[int | None, COUNT]


@dataclass(frozen=True)
class Answer(Checked):
    """One mode's answer to one problem: a line of ``results.jsonl``."""

    mode: Text  # its label
    id: Count  # the problem's number in its split
    score: Annotated[float | None, PROBABILITY]  # None if answers are only timed
    tokens: Count
    # Rounds of the text, and drafted tokens kept in all of them; for the target alone a token is a round.
    rounds: Count
    accepted: Count
    seconds: Annotated[float, _AMOUNT]  # of the call of ``generate()``, shared equally by its rows
    text: Text
    lossy: Count = 0  # drafted tokens that only the rule kept, not the lossless one
    cut: Flag = False  # whether its length's limit ended it
    # None where an engine does not say.
    prompt: _KNOWN = None  # tokens
    drafted: _KNOWN = None  # tokens
    ids: _Listed = ()  # its tokens, where those of the text are others


def by_mode(answers: Iterable[Answer]) -> dict[str, dict[int, Answer]]:
    """Return answers by the mode's label and the problem's number."""
    found: dict[str, dict[int, Answer]] = {}
    for answer in answers:
        found.setdefault(answer.mode, {})[answer.id] = answer
    return found


class AnswerStore(Records[Answer]):
    """Answers by mode and problem. Only modes, problems and runs may be added to a folder."""

    row_type, keys, command, file = Answer, ("mode", "id"), "evaluate", RESULTS
    kinds = {"modes": dict, "problems": list}  # noqa: RUF012
    growing = frozenset(kinds)


def load_answers(folder: str | Path) -> tuple[dict[str, Any], list[Answer]]:
    """Return the manifest and the answers of a folder that an evaluation has written, finished or not.

    Raises
    ------
    LossyValueError
        When the folder was not written by an evaluation.
    """
    store = AnswerStore(Path(folder))
    return store.plan, [*store]


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = (line.partition(":") for line in info.read_text().splitlines())
        if name := next((value.strip() for key, _, value in lines if key.strip() == "model name"), None):
            return name
    return platform.processor() or platform.machine()


def provenance(device: torch.device | str, **settings: Any) -> dict[str, Any]:
    """Return versions, command line, date and machine of this run, with ``settings`` of the measurement.

    Paths to elsewhere are without their folders.
    """
    record = {
        "hf_lossy_assist": __version__,
        **versions_of("transformers"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "argv": command_line(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "threads": torch.get_num_threads(),
        "device": str(device),
        **settings,
    }
    return without_folders(record)
