"""``python -m benchmarks.train_pair``: make the bundled pair again from its seed, and measure it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

import torch

from benchmarks.bundled_pair import cards
from benchmarks.bundled_pair.pretraining import train_model
from benchmarks.bundled_pair.recipe import RECIPES, Cycle, build_tokenizer, save_model
from hf_lossy_assist.pairs import ROLES

from . import application

# Enough to run every stage; such a model answers nothing.
_QUICK = {"layers": 1, "hidden": 32, "heads": 2, "intermediate": 48, "batch": 4, "cycles": (Cycle(15), Cycle(5))}


def train_pair(
    *, out: Path = Path("arithmetic-pair"), role: Literal["target", "draft"] | None = None, threads: int = 1,
    problems: int = 1000, quick: bool = False,
) -> None:  # fmt: skip
    """Train the bundled pair from its seed, measure it, and write weights, figures and model cards.

    Interrupted runs continue from OUT/.checkpoints when the command is repeated.

    Parameters
    ----------
    out
        Folder for `target` and `draft`.
    role
        Which model to train; both by default.
    threads
        Threads of the CPU.
    problems
        Test problems for the final measurement.
    quick
        A few steps of tiny models, to try the command out.
    """
    torch.set_num_threads(threads)
    tokenizer = build_tokenizer()
    for name in (role,) if role else ROLES:
        recipe = dataclasses.replace(RECIPES[name], **_QUICK) if quick else RECIPES[name]
        save_model(train_model(recipe, tokenizer, out / ".checkpoints" / name), tokenizer, out / name)
        figures = cards.measure(out / name, name, recipe, problems=20 if quick else problems)
        cards.write(out / name, figures)
        right = f"{figures['correct']} of {figures['problems']} answers right ({100 * figures['accuracy']:.1f} %)"
        print(f"{name}: {right}, {figures['parameters']:,} parameters")


app = application(main=train_pair)

if __name__ == "__main__":
    app()
