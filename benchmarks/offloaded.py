"""``python -m benchmarks.offloaded``: modes with a target whose weights are read from disk in each forward pass.

AutoJudge (table 2) measures targets that are too large for the memory. Their forwards are so dear that long drafts pay.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated

import typer
from accelerate import disk_offload

from hf_lossy_assist.pairs import Pair

from . import Data, Device, Dtype, Int8, Limit, MaxNew, Modes, Out, PairName, Task, command, measured


def main(
    folder: Annotated[Path | None, typer.Option(help="Where the weights go; a temporary folder by default.")] = None,
    pair: PairName = "qwen-coder",
    modes: Modes = "plain,lossless",
    limit: Limit = 2,
    task: Task = None,
    data: Data = None,
    max_new_tokens: MaxNew = None,
    int8: Int8 = False,
    device: Device = "cpu",
    dtype: Dtype = None,
    out: Out = None,
) -> None:
    """Evaluate modes with the target's weights on disk."""
    where = folder or Path(mkdtemp(prefix="weights-"))

    def change(loaded: Pair) -> Pair:
        return offload(loaded, where)

    typer.echo(measured(change, pair, modes, limit, task, data, max_new_tokens, int8, device, dtype, out))


def offload(models: Pair, folder: Path) -> Pair:
    """Move the target's weights to files; every forward reads them."""
    return replace(models, target=disk_offload(models.target, folder, models.target.device))


app = command(main)

if __name__ == "__main__":
    app()
