"""Scores of every mode on every problem, in a small file: ``python -m benchmarks.outcome_matrix FOLDER FILE.csv``."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from hf_lossy_assist.evaluation.answers import load_answers

from . import command

Scores = dict[str, np.ndarray]
"""By mode, the reference first, ``(n,)`` scores on the same problems."""


def outcomes(source: Path) -> tuple[list[int], Scores]:
    """Return problems and scores from a file written here, or from a folder of ``evaluate``."""
    if source.is_file():
        with source.open(encoding="utf-8", newline="") as file:
            (_, *labels), *rows = csv.reader(file)
        return [int(row[0]) for row in rows], {
            label: np.array([float(row[m]) for row in rows]) for m, label in enumerate(labels, 1)
        }
    plan, answers = load_answers(source)
    found: dict[str, dict[int, float]] = {plan["reference"]: {}}
    for answer in answers:
        found.setdefault(answer.mode, {})[answer.id] = answer.score
    ids = sorted(set.intersection(*map(set, found.values())))
    return ids, {label: np.array([own[i] for i in ids]) for label, own in found.items()}


def by_rule(labels: Iterable[str]) -> dict[str, list[str]]:
    """Return the labels of settings by their rules: ``rule:key=value`` or ``rule key=value``."""
    rules: dict[str, list[str]] = {}
    for label in labels:
        rules.setdefault(label.rpartition(" ")[0] or label.partition(":")[0], []).append(label)
    return rules


def main(
    folder: Annotated[Path, typer.Argument(help="What `evaluate` has written.")],
    file: Annotated[Path, typer.Argument(help="The CSV file to write.")],
    rule: Annotated[list[str] | None, typer.Option(help="Keep only settings of this rule. Repeatable.")] = None,
) -> None:
    """Write the scores of the problems that all modes have answered."""
    ids, scores = outcomes(folder)
    reference, *labels = scores
    kept = [label for name, own in by_rule(labels).items() if rule is None or name in rule for label in own]
    scores = {label: scores[label] for label in (reference, *kept)}
    with file.open("w", encoding="utf-8", newline="") as opened:
        writer = csv.writer(opened, lineterminator="\n")
        writer.writerow(["id", *scores])
        writer.writerows([i, *(f"{own[row]:g}" for own in scores.values())] for row, i in enumerate(ids))


app = command(main)

if __name__ == "__main__":
    app()
