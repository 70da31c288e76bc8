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
MODES = {
    "target alone": "target alone",
    "stock assisted": "transformers' assisted generation, γ = 8",
    "lossless@24": "lossless, γ = 24",
    "dropmatch@24": "dropmatch, ρ = 0.3, γ = 24",
    "judge@24": "judge, γ = 24",
}
"""The modes that are shown, by their label in the rows."""


def main(
    rows: Annotated[Path, typer.Argument(help="What a bench command wrote.")] = _HERE / "grown" / "bench.jsonl",
    out: Annotated[Path, typer.Option(help="The picture, an SVG file.")] = _HERE.parent / "docs" / "speed.svg",
) -> None:
    """Draw the speed of a few modes as bars, with their answers beside them."""
    tables: dict[str, dict[str, Any]] = {"ModeSummary": {}, "ModeScore": {}}
    for row in map(json.loads, rows.read_text(encoding="utf-8").splitlines()):
        tables.get(row["table"], {})[row.get("label")] = row
    with rc_context({"svg.hashsalt": "headline", "svg.fonttype": "none"}):
        figure = Figure(figsize=(7.5, 2.2), layout="constrained")
        figure.patch.set_facecolor("white")  # or nothing can be read on a dark page
        axes = figure.subplots()
        speeds = [tables["ModeSummary"][label]["tokens_per_second"]["median"] for label in MODES]
        bars = axes.barh(list(MODES.values()), speeds, color=["0.7", "0.7", "0.7", "C0", "C0"])
        texts = [f"{tables['ModeScore'][label]['score']:.1%} right".replace("%", " %") for label in MODES]
        axes.bar_label(bars, texts, padding=4)
        axes.invert_yaxis()
        axes.margins(x=0.18)
        axes.set_xlabel("tokens per second")
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(out, metadata={"Date": None})


app = command(main)

if __name__ == "__main__":
    app()
