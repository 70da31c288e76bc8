"""Make the bundled pair again from its seed, and measure it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

import torch

from benchmarks.bundled_pair import cards
from benchmarks.bundled_pair.pretraining import train_model
from benchmarks.bundled_pair.recipe import RECIPES, Cycle, ModelRecipe, build_tokenizer, save_model
from hf_lossy_assist import pairs

from . import application

BUNDLED = Path(pairs.__file__).parent / "arithmetic"
Role = Literal["target", "draft"]
# Enough to run every stage; such a model answers nothing.
_QUICK = {"layers": 1, "hidden": 32, "heads": 2, "intermediate": 48, "batch": 4, "cycles": (Cycle(15), Cycle(5))}

app = application(__doc__)


@app.command
def train_pair(
    *, out: Path = Path("arithmetic-pair"), role: Role | None = None, threads: int = 1, problems: int = 1000,
    quick: bool = False,
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
    for name in (role,) if role else pairs.ROLES:
        recipe = dataclasses.replace(RECIPES[name], **_QUICK) if quick else RECIPES[name]
        save_model(train_model(recipe, tokenizer, out / ".checkpoints" / name), tokenizer, out / name)
        _evaluate(name, recipe, out / name, 20 if quick else problems, write=True)


@app.command
def evaluate_pair(
    *, folder: Path = BUNDLED, role: Role | None = None, problems: int = 1000, threads: int = 1, write: bool = False
) -> None:
    """Measure the exact-answer accuracy of each model of the pair alone, greedily.

    Parameters
    ----------
    folder
        Folder with `target` and `draft`.
    role
        Which model to measure; both by default.
    problems
        Test problems.
    threads
        Threads of the CPU.
    write
        Write figures.json and the model card.
    """
    torch.set_num_threads(threads)
    for name in (role,) if role else pairs.ROLES:
        _evaluate(name, cards.recorded_recipe(folder / name, name), folder / name, problems, write=write)


def _evaluate(role: str, recipe: ModelRecipe, folder: Path, problems: int, *, write: bool) -> None:
    """Measure one model and print its accuracy."""
    figures = cards.measure(folder, role, recipe, problems=problems)
    if write:
        cards.write(folder, figures)
    right = f"{figures['correct']} of {problems} answers right ({100 * figures['accuracy']:.1f} %)"
    print(f"{role}: {right}, {figures['parameters']:,} parameters")


if __name__ == "__main__":
    app()
