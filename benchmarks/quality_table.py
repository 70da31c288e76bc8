"""``python -m benchmarks.quality_table FOLDER``: the rows of an evaluation as a table for a page.

With ``--bench``, an answer's seconds at batch 1 are those until the first tokens, and its later rounds times what such
a round of the same rule and γ took there, in the median request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from hf_lossy_assist.evaluation.answers import load_answers
from hf_lossy_assist.evaluation.quality import ModeScore, mode_scores

from . import command

_ALONE = ("plain", "draft")
_NAMES = {"draft": "draft alone", "plain": "target alone", "everything": "everything kept"}


@dataclass(frozen=True)
class RoundTime:
    """How long a mode takes at batch 1."""

    first: float  # seconds until a round has given the first tokens, the prompt's reading included
    later: float  # seconds of a later round

    def of(self, rounds: float) -> float:
        """Return the seconds of an answer with so many rounds.

        Examples
        --------
        >>> RoundTime(first=2.0, later=0.5).of(5)
        4.0
        """
        return self.first + (rounds - 1) * self.later


def round_times(bench: Path) -> dict[str, RoundTime]:
    """Return the times of the modes of ``bench``, by label; the label leaves out the γ that is the default."""
    rows = [json.loads(line) for line in bench.read_text(encoding="utf-8").splitlines()]
    default = rf"@{rows[0]['gamma']}(?=:|$)"
    firsts = {row["label"]: row["first_token"] for row in rows if row["table"] == "ModeSummary"}
    timed: dict[str, list[float]] = {}
    for row in rows:
        if row["table"] != "RequestRecord" or row["split"] is not None or row["counts"] is None:
            continue
        if later := row["counts"]["rounds"] - 1:
            timed.setdefault(row["label"], []).append((row["seconds"] - firsts[row["label"]]) / later)
    return {re.sub(default, "", label): RoundTime(firsts[label], median(times)) for label, times in timed.items()}


def line(row: ModeScore, reference: str, times: Mapping[str, RoundTime], count: bool = False) -> str:
    """Return the table's line of one mode, with the ``count`` of its problems if wanted.

    Examples
    --------
    >>> from hf_lossy_assist.evaluation.answers import Answer
    >>> modes = ("lossless", "topk")
    >>> answers = [Answer(mode, i, 1.0, 60, 10, 50, None, "", cut=not i) for mode in modes for i in range(2)]
    >>> _, row = mode_scores(answers, "lossless")
    >>> line(row, "lossless", {})
    '| `topk` | 100.0 | +0.0 (-100.0 … +100.0) | 5.00 | 16.7 | 60 (+0, +0 … +0) | 50.0 |'
    """
    own = row.label == reference
    difference = [100 * value for value in (row.difference, row.low, row.high)]
    points = "" if own else "{:+.1f} ({:+.1f} … {:+.1f})".format(*difference)
    kept, calls = f"{row.mean_accepted:.2f}", f"{row.target_calls_per_100_tokens:.1f}"
    if row.label in _ALONE:
        kept = ""
    if row.label == "draft":
        calls = ""
    length = row.tokens_per_answer
    tokens = f"{length.mean:.0f}"
    if not own and length.low is not None:
        tokens += f" ({length.difference:+.0f}, {length.low:+.0f} … {length.high:+.0f})"
    name = _NAMES.get(row.label, f"`{row.label}`")
    cells = [name, f"{100 * row.score:.1f}", points, kept, calls, tokens, f"{100 * row.cut_off:.1f}"]
    if count:
        cells.insert(1, str(row.n))
    if times:
        timed = row.label in times and row.tokens_per_round
        cells.append(f"{times[row.label].of(length.mean / row.tokens_per_round):.1f}" if timed else "")
    return f"| {' | '.join(cells)} |"


def main(
    folder: Annotated[Path, typer.Argument(help="What `evaluate` has written.")],
    bench: Annotated[Path | None, typer.Option(help="bench.jsonl of the same modes, for seconds.")] = None,
    first: Annotated[int | None, typer.Option(help="Count only so many problems.")] = None,
    unequal: Annotated[bool, typer.Option("--unequal", help="Modes that answered fewer problems, too.")] = False,
) -> None:
    """Print a table of scores, tokens kept, lengths, and seconds, of the modes that answered all problems."""
    plan, answers = load_answers(folder)
    reference = plan["reference"]
    rows = mode_scores([answer for answer in answers if first is None or answer.id < first], reference)
    times = {} if bench is None else round_times(bench)
    gammas = {config.get("num_assistant_tokens") for config in plan["modes"].values()} - {None}
    kept = f"kept of {gammas.pop()}" if len(gammas) == 1 else "kept per round"
    heads = ["rule", "solved, %", f"points against `{reference}`", kept, "target calls per 100 tokens"]
    if unequal:
        heads.insert(1, "problems")
    heads += ["tokens per answer", "cut off, %", *(["seconds per answer"] if times else [])]
    problems = max(row.n for row in rows)
    typer.echo(f"{problems} problems\n")
    typer.echo(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    shown = [row for row in rows if unequal or row.n == problems]
    for row in sorted(shown, key=lambda row: (row.label not in _ALONE, row.label != reference, row.mean_accepted)):
        typer.echo(line(row, reference, times, unequal))


app = command(main)
if __name__ == "__main__":
    app()
