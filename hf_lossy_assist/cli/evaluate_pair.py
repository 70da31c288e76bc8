"""``lossy-assist evaluate-pair``: how often the models of a pair answer right on their own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from ..pairs import ROLES
from ..pairs.recipe import RECIPES, ModelRecipe
from .console import console, progress


def evaluate_pair(
    folder: Annotated[
        Path | None, typer.Option(help="Folder with `target` and `draft`; the bundled pair by default.")
    ] = None,
    role: Annotated[Literal["target", "draft", "both"], typer.Option(help="Which model to measure.")] = "both",
    problems: Annotated[int, typer.Option(min=1, help="Test problems.")] = 1000,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; torch's choice by default.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Write figures.json and the model card.")] = False,
) -> None:
    """Measure the exact-answer accuracy of each model of a pair alone, greedily."""
    import torch

    from ..pairs.pair import bundled_folder

    if threads is not None:
        torch.set_num_threads(threads)
    root = bundled_folder("arithmetic") if folder is None else folder
    for name in roles_of(role):
        evaluate_role(name, RECIPES[name] if write else None, root, problems, console())


def roles_of(role: str) -> tuple[str, ...]:
    """Return the roles that an option's value stands for."""
    return ROLES if role == "both" else (role,)


def evaluate_role(role: str, recipe: ModelRecipe | None, folder: Path, problems: int, screen: Console) -> None:
    """Measure one model and print its accuracy; with a recipe, write figures and card too."""
    from transformers import AutoTokenizer

    from ..pairs import cards
    from ..pairs.evaluation import evaluate
    from ..pairs.pair import load_model, task_of

    with progress(screen) as bar:
        task = bar.add_task(f"{role}: answering", total=problems)

        def on_batch(done: int) -> None:
            bar.update(task, completed=done)

        if recipe is not None:
            figures = cards.measure(folder / role, role, recipe, problems=problems, on_batch=on_batch)
            correct = figures["correct"]
        else:
            model = load_model(folder / role)
            tokenizer = AutoTokenizer.from_pretrained(folder / role)
            correct = evaluate(model, tokenizer, task_of("arithmetic"), problems, on_batch=on_batch).correct
    screen.print(f"{role}: {correct} of {problems} answers right ({100 * correct / problems:.1f} %)")
