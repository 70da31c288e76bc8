"""``python -m benchmarks.offloaded``: modes whose target is read from disk in each forward, with the draft in memory.

A drafted token costs a thirtieth of such a forward, so drafts are long.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp

import torch
from accelerate import disk_offload

import hf_lossy_assist
from hf_lossy_assist import pairs, tasks

from . import application


def main(
    *, out: Path, data: str | None = None, pair: str = "qwen-coder", task: str = "gsm8k",
    modes: str = "lossless@20,typical@32", limit: int = 20, max_new_tokens: int = 512, dtype: str = "float32",
    weights: Path | None = None, head: str | None = None,
) -> None:  # fmt: skip
    """Answer problems one by one, all modes in turn; the first mode is the reference.

    Parameters
    ----------
    out
        A folder for the answers; an interrupted run goes on there.
    data
        The task's file.
    weights
        Where the target's weights go; a temporary folder by default.
    head
        The pair's head for its rule, by name; by default the first one.
    """
    loaded = pairs.load(pair, dtype=getattr(torch, dtype))
    chosen = {} if head is None else {loaded.heads[head].config.rule: loaded.heads[head]}
    target = disk_offload(loaded.target, weights or mkdtemp(prefix="weights-"), torch.device("cpu"))
    result = hf_lossy_assist.evaluate(
        target, hf_lossy_assist.prepack(loaded.draft), tokenizer=loaded.tokenizer, task=tasks.load(task, data),
        modes=modes, heads=loaded.rule_heads | chosen, reference=modes.split(",")[0], limit=limit,
        max_new_tokens=max_new_tokens, out=out,
    )  # fmt: skip
    print(result)


app = application(main)

if __name__ == "__main__":
    app()
