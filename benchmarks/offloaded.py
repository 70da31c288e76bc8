"""``python -m benchmarks.offloaded evaluate …``: speeds with a target whose weights are read from disk each time.

AutoJudge (table 2) measures targets that are too large for the memory. Their forwards are so dear that long drafts pay.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated

import typer
from accelerate import disk_offload

from benchmarks import evaluations
from hf_lossy_assist.evaluation.modes import Models


def offloaded(
    context: typer.Context,
    folder: Annotated[Path | None, typer.Option(help="Where the weights go; a temporary folder by default.")] = None,
) -> None:
    """Measure speeds with the target's weights on disk."""
    where = folder or Path(mkdtemp(prefix="weights-"))
    context.obj = lambda models: offload(models, where)


def offload(models: Models, folder: Path) -> Models:
    """Move the target's weights to files; every forward reads them."""
    return replace(models, target=disk_offload(models.target, folder, models.target.device))


app = evaluations(offloaded)

if __name__ == "__main__":
    app()
