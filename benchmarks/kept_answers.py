"""``python -m benchmarks.kept_answers FOLDER OUT``: a folder of ``evaluate`` with checksums in place of texts.

Answers may quote their data set, which is not kept here. ``evaluate … --out COPY`` continues a copy of the folder.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from hf_lossy_assist.errors import LossyValueError
from hf_lossy_assist.evaluation.answers import RESULTS, Answer, load_answers
from hf_lossy_assist.evaluation.scores import baselines_of, mode_scores
from hf_lossy_assist.store.folder import MANIFEST, without_folder, write_json

from . import command, write_lines
from .quality_table import modes_of

_SUM = re.compile("crc32:[0-9a-f]{8}")


def without_text(answer: Answer) -> Answer:
    """Replace an answer's text by its checksum; equal texts have equal ones.

    Examples
    --------
    >>> kept = without_text(Answer("plain", 0, 1.0, 2, 2, 0, 0.1, "Hello!"))
    >>> kept.text, without_text(kept) == kept
    ('crc32:9d2acc56', True)
    """
    if _SUM.fullmatch(answer.text):
        return answer
    return replace(answer, text=f"crc32:{zlib.crc32(answer.text.encode()):08x}", ids=())


def whole_text(answer: Answer) -> str:
    """Return an answer's text, for what reads texts."""
    if _SUM.fullmatch(answer.text):
        raise LossyValueError(
            f"`folder` has no texts: the answer of {answer.mode!r} to problem {answer.id} is kept as {answer.text!r}; "
            "give the folder that `evaluate` has written"
        )
    return answer.text


def main(
    folder: Annotated[Path, typer.Argument(help="What `evaluate` has written.")],
    out: Annotated[Path, typer.Argument(help="The folder to write; its answers are replaced.")],
) -> None:
    """Keep the answers of an evaluation without their texts, and sum them up."""
    plan, answers = load_answers(folder)
    order = {label: number for number, label in enumerate(plan["modes"])}
    for run in plan["runs"]:  # other machines lack these folders
        run["argv"] = [without_folder(word) for word in run.get("argv", ())]
    kept = sorted(map(without_text, answers), key=lambda answer: (order[answer.mode], answer.id))
    out.mkdir(parents=True, exist_ok=True)
    write_lines(out / RESULTS, map(asdict, kept))
    write_json(out / MANIFEST, plan)
    rows = mode_scores(kept, plan["reference"], baselines_of(modes_of(plan)), plan.get("batch_size", 1))
    write_json(out / "summary.json", {row.label: row.entry for row in rows})


app = command(main)
if __name__ == "__main__":
    app()
