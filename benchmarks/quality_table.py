"""``python -m benchmarks.quality_table FOLDER``: the rows of an evaluation as a table for a page.

With ``--bench``, an answer's seconds at batch 1 are its rounds times what a round of the same rule and γ took there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from hf_lossy_assist.evaluation.answers import load_answers
from hf_lossy_assist.evaluation.quality import ModeScore, mode_scores

from . import command

_ALONE = ("plain", "draft")
_NAMES = {"draft": "draft alone", "plain": "target alone", "everything": "everything kept"}


def round_seconds(bench: Path) -> dict[str, float]:
    """Return the seconds of a round by the label of the mode, from the summaries of ``bench``."""
    rows = [json.loads(line) for line in bench.read_text(encoding="utf-8").splitlines()]
    return {
        row["label"]: row["tokens_per_round"] / row["tokens_per_second"]["median"]
        for row in rows
        if row["table"] == "ModeSummary" and row["tokens_per_round"]
    }


def line(row: ModeScore, reference: str, seconds: Mapping[str, float], count: bool = False) -> str:
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
    if seconds:
        rounds = length.mean / row.tokens_per_round if row.tokens_per_round else 0
        cells.append(f"{rounds * seconds[row.label]:.1f}" if row.label in seconds else "")
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
    seconds = {} if bench is None else round_seconds(bench)
    gammas = {config.get("num_assistant_tokens") for config in plan["modes"].values()} - {None}
    kept = f"kept of {gammas.pop()}" if len(gammas) == 1 else "kept per round"
    heads = ["rule", "solved, %", f"points against `{reference}`", kept, "target calls per 100 tokens"]
    if unequal:
        heads.insert(1, "problems")
    heads += ["tokens per answer", "cut off, %", *(["seconds per answer"] if seconds else [])]
    problems = max(row.n for row in rows)
    typer.echo(f"{problems} problems\n")
    typer.echo(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    shown = [row for row in rows if unequal or row.n == problems]
    for row in sorted(shown, key=lambda row: (row.label not in _ALONE, row.label != reference, row.mean_accepted)):
        typer.echo(line(row, reference, seconds, unequal))


app = command(main)
if __name__ == "__main__":
    app()
