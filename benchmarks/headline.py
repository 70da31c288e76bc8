"""Draw README's picture from committed rows: ``python -m benchmarks.headline``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from matplotlib import rc_context
from matplotlib.figure import Figure

from . import command

_HERE = Path(__file__).parent
_ROWS = _HERE / "memory_limit" / "engines" / "bench.jsonl"
MODES = {
    "target alone": "target alone",
    "stock assisted@2": "transformers' assisted generation, γ = 2",
    "vLLM: target alone": "vLLM, target alone",
    "vLLM: its own lossless@2": "vLLM, lossless, γ = 2",
    "lossless@auto": "lossless",
    "typical@auto": "typical",
}
"""The modes that are shown, by their label in the rows."""


def main(
    rows: Annotated[Path, typer.Argument(help="What a bench command wrote.")] = _ROWS,
    out: Annotated[Path, typer.Option(help="The picture, an SVG file.")] = _HERE.parent / "docs" / "speed.svg",
) -> None:
    """Draw the speed of a few modes as bars: the median, and the least and the largest of the repeats."""
    table: dict[str, dict[str, Any]] = {}
    for row in map(json.loads, rows.read_text(encoding="utf-8").splitlines()):
        if row["table"] == "ModeSummary":
            table[row["label"]] = row["tokens_per_second"]
    with rc_context({"svg.hashsalt": "headline", "svg.fonttype": "none"}):
        figure = Figure(figsize=(7.5, 2.2), layout="constrained")
        figure.patch.set_facecolor("white")  # or nothing can be read on a dark page
        axes = figure.subplots()
        speeds = [table[label] for label in MODES]
        middle = [speed["median"] for speed in speeds]
        apart = [[abs(speed[end] - speed["median"]) for speed in speeds] for end in ("low", "high")]
        colors = ["0.7" if "@auto" not in label else "C0" for label in MODES]
        bars = axes.barh(list(MODES.values()), middle, xerr=apart, color=colors, error_kw={"linewidth": 0.8})
        axes.bar_label(bars, [f"{speed:.1f}" for speed in middle], padding=4)
        axes.invert_yaxis()
        axes.margins(x=0.18)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel("tokens per second")
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(out, metadata={"Date": None})


app = command(main)

if __name__ == "__main__":
    app()
