"""``python -m benchmarks.gpu.check --out DIR``: what a GPU has to show.

One JSON object per line goes to the screen and to ``DIR/gpu.jsonl`` as soon as it is known. Each part has a budget, and
what does not fit is said to be left out. ``--tiny`` runs the same on a CPU, with tiny models.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import transformers

import hf_lossy_assist
from benchmarks import application
from hf_lossy_assist.errors import LossyValueError

from .equality import equality
from .faults import faults
from .real_answers import answers, large
from .run import Run
from .speed import batch, speed

LEASE = {
    "speed": (speed, 150), "batch": (batch, 50), "large": (large, 60), "answers": (answers, 60), "faults": (faults, 30),
}  # fmt: skip
PARTS = LEASE | {"equality": (equality, 90)}
"""Parts by name, and the seconds that each may take; without ``--parts``, those of a lease of six minutes run."""


def check(
    *, out: Path | None = None, tiny: bool = False, budget: float = 350.0, parts: str = ",".join(LEASE),
) -> None:  # fmt: skip
    """Measure speeds and answers, and check equality and faults, on a CUDA GPU.

    Parameters
    ----------
    out
        Folder for `gpu.jsonl`.
    tiny
        Tiny models, also without a GPU.
    budget
        Seconds that all parts may take.
    parts
        Some of speed, batch, large, answers, faults, equality; the last is left out first.
    """
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
        run.part(part, *PARTS[part])
    run.say("end", failed=run.failed)
    if run.failed:
        sys.exit(1)


app = application(check)

if __name__ == "__main__":
    app()
