"""``python -m benchmarks.gpu.check --out DIR``: all that a GPU has to show, in seven minutes of an H100.

One JSON object per line goes to the screen and to ``DIR/gpu.jsonl`` as soon as it is known. Each part has a budget, and
what does not fit is said to be left out. ``--tiny`` runs the same on a CPU, with tiny models.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import torch
import transformers
import typer

import hf_lossy_assist
from benchmarks import command
from hf_lossy_assist.errors import LossyValueError

from .equality import equality
from .real_answers import long_text, real_answers
from .run import Run
from .speed import speed

PARTS = {"equality": (equality, 90), "answers": (real_answers, 80), "speed": (speed, 230), "long": (long_text, 40)}
"""What is run, in this order, and for how many seconds a part may begin further steps."""


def check(
    out: Annotated[Path | None, typer.Option(help="Folder for `gpu.jsonl`.")] = None,
    tiny: Annotated[bool, typer.Option(help="Tiny models, also without a GPU.")] = False,
    budget: Annotated[float, typer.Option(help="Seconds after which no further step begins.")] = 420.0,
    parts: Annotated[str, typer.Option(help="Some of: equality, answers, speed, long.")] = ",".join(PARTS),
) -> None:
    """Check equality, and measure speeds, waits and memory on a CUDA GPU."""
    if unknown := sorted({*parts.split(",")} - {*PARTS}):
        raise LossyValueError(f"`--parts` has to be some of {list(PARTS)}, but has {unknown}")
    if not torch.cuda.is_available() and not tiny:
        raise LossyValueError("`benchmarks.gpu.check` needs a CUDA GPU, but there is none; pass `--tiny` to try it")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    run = Run("cuda:0" if torch.cuda.is_available() else "cpu", tiny, budget, out)
    torch.backends.cuda.matmul.allow_tf32 = False
    hf_lossy_assist.enable()
    name = torch.cuda.get_device_name() if run.cuda else "cpu"
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    run.say("device", device=name, **versions, package=hf_lossy_assist.__version__)
    for part in parts.split(","):
        run.part(*PARTS[part])
    run.say("end", failed=run.failed)
    if run.failed:
        sys.exit(1)


app = command(check)

if __name__ == "__main__":
    app()
