"""Draw the pictures in this folder again, from the rows beside them: ``python -m benchmarks.draw``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from hf_lossy_assist.cli import bench_report
from hf_lossy_assist.evaluation.plots import PlotPoint, plot
from hf_lossy_assist.evaluation.quality import ModeScore
from hf_lossy_assist.evaluation.summary import ModeSummary, Spread

from . import command
from .plot_labels import write_labels

_HERE = Path(__file__).parent


def main(
    folder: Annotated[Path, typer.Argument(help="Where to look for rows, folders in it included.")] = _HERE,
) -> None:
    """Draw every ``bench.jsonl`` of a folder, and every summary of scores that has no ``plot.png`` yet."""
    for path in sorted(folder.rglob("bench.jsonl")):
        origin, *rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
        draw(origin, rows, path.with_suffix(".png"))
    for path in sorted(folder.rglob("*.json")):
        if path.name != "summary.json":
            draw_scores(json.loads(path.read_text(encoding="utf-8")), path.with_suffix(".png"))


def draw(origin: dict[str, Any], rows: list[dict[str, Any]], path: Path) -> None:
    """Draw one file of rows."""
    summaries = _read(rows, ModeSummary)
    summaries = [dataclasses.replace(row, tokens_per_second=Spread(**row.tokens_per_second)) for row in summaries]
    plot(*bench_report.picture(summaries, _read(rows, ModeScore)), path, bench_report.title(origin), bottom=0)


def draw_scores(summary: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """Draw the scores of an evaluation's modes by tokens kept, with intervals around the first mode's score."""
    series: dict[str, list[PlotPoint]] = {}
    for label, entry in summary.items():
        rule, _, settings = label.partition(":")
        kept = entry["mean_accepted"]
        own = entry["score"] - entry["difference"]
        score = (100 * (own + entry[name]) for name in ("difference", "low", "high"))
        series.setdefault(rule, []).append(PlotPoint((kept, kept, kept), tuple(score), settings))
    plot(series, "drafted tokens kept per round", "score, %", path, path.stem, write_labels=write_labels)


def _read(rows: list[dict[str, Any]], table: type) -> list[Any]:
    names = {field.name for field in dataclasses.fields(table)}  # older rows have more
    return [table(**{k: v for k, v in row.items() if k in names}) for row in rows if row["table"] == table.__name__]


app = command(main)

if __name__ == "__main__":
    app()
