"""``lossy-assist evaluate-pair``: how often the models of a pair answer right on their own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from transformers.utils.logging import disable_progress_bar

from ..pairs import ROLES, cards
from ..pairs.pair import bundled_folder
from ..pairs.recipe import ModelRecipe
from .console import console, limit_threads, progress


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
    limit_threads(threads)
    disable_progress_bar()
    root = bundled_folder("arithmetic") if folder is None else folder
    for name in roles_of(role):
        recipe = cards.recorded_recipe(root / name, name)
        evaluate_role(name, recipe, root / name, problems, console(), write=write)


def roles_of(role: str) -> tuple[str, ...]:
    """Return the roles that an option's value stands for."""
    return ROLES if role == "both" else (role,)


def evaluate_role(role: str, recipe: ModelRecipe, folder: Path, problems: int, screen: Console, *, write: bool) -> None:
    """Measure one model and print its accuracy."""
    with progress(screen) as bar:
        task = bar.add_task(f"{role}: answering", total=problems)
        figures = cards.measure(
            folder, role, recipe, problems=problems, on_batch=lambda done: bar.update(task, completed=done)
        )
    if write:
        cards.write(folder, figures)
    screen.print(
        f"{role}: {figures['correct']} of {problems} answers right ({100 * figures['accuracy']:.1f} %), "
        f"{figures['parameters']:,} parameters"
    )
