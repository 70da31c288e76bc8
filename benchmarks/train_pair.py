"""Make a bundled pair again from its seed, and measure it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import torch
import typer
from rich.console import Console
from rich.progress import Progress
from transformers import PreTrainedTokenizerBase

from benchmarks.bundled_pair import cards
from benchmarks.bundled_pair.pretraining import save_model, train_model
from benchmarks.bundled_pair.recipe import RECIPES, Cycle, ModelRecipe, build_tokenizer
from hf_lossy_assist import LossyValueError, pairs
from hf_lossy_assist.pairs import ROLES

BUNDLED = Path(pairs.__file__).parent / "arithmetic"
Threads = Annotated[int, typer.Option(min=1, help="Threads of the CPU.")]
# Enough to run every stage; such a model answers nothing.
_QUICK = {"layers": 1, "hidden": 32, "heads": 2, "intermediate": 48, "batch": 4, "cycles": (Cycle(15), Cycle(5))}


def train_pair(
    pair: Annotated[str, typer.Argument(help="The pair: arithmetic.")] = "arithmetic",
    out: Annotated[Path | None, typer.Option(help="Folder for `target` and `draft`; PAIR-pair by default.")] = None,
    role: Annotated[Literal["target", "draft", "both"], typer.Option(help="Which model to train.")] = "both",
    threads: Threads = 1,
    problems: Annotated[int, typer.Option(min=1, help="Test problems for the final measurement.")] = 1000,
    quick: Annotated[bool, typer.Option("--quick", help="A few steps of tiny models, to try the command out.")] = False,
) -> None:
    """Train a bundled pair from its seed, measure it, and write weights, figures and model cards.

    Interrupted runs continue from OUT/.checkpoints when the command is repeated.
    """
    torch.set_num_threads(threads)
    screen = Console()
    recipes, out = recipes_of(pair), Path(f"{pair}-pair") if out is None else out
    tokenizer = build_tokenizer(pair=pair)
    for name in _roles_of(role):
        recipe = dataclasses.replace(recipes[name], **_QUICK) if quick else recipes[name]
        _train(name, recipe, tokenizer, out, screen)
        _evaluate(name, recipe, out / name, 20 if quick else problems, screen, write=True)


def _train(role: str, recipe: ModelRecipe, tokenizer: PreTrainedTokenizerBase, out: Path, screen: Console) -> None:
    checkpoint = out / ".checkpoints" / f"{role}.safetensors"
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    with Progress(console=screen) as bar:
        task = bar.add_task(f"{role}: training", total=recipe.steps, start=False)
        recent: list[float] = []

        def on_step(step: int, loss: float) -> None:
            if not bar.tasks[task].started:
                # The first call tells where the run begins: a resumed run must not count old steps as fast ones.
                bar.reset(task, completed=step)
                if step:
                    screen.print(f"{role}: continuing after step {step} of {recipe.steps}")
                return
            recent.append(loss)
            mean = sum(recent[-25:]) / len(recent[-25:])
            bar.update(task, completed=step, description=f"{role}: training, loss {mean:.4f}")

        model = train_model(recipe, tokenizer, checkpoint, on_step)
    save_model(model, tokenizer, out / role)


def evaluate_pair(
    pair: Annotated[str, typer.Option(help="The pair: arithmetic.")] = "arithmetic",
    folder: Annotated[
        Path | None, typer.Option(help="Folder with `target` and `draft`; the bundled ones by default.")
    ] = None,
    role: Annotated[Literal["target", "draft", "both"], typer.Option(help="Which model to measure.")] = "both",
    problems: Annotated[int, typer.Option(min=1, help="Test problems.")] = 1000,
    threads: Threads = 1,
    write: Annotated[bool, typer.Option("--write", help="Write figures.json and the model card.")] = False,
) -> None:
    """Measure the exact-answer accuracy of each model of a pair alone, greedily."""
    torch.set_num_threads(threads)
    recipes_of(pair)
    root = BUNDLED if folder is None else folder
    for name in _roles_of(role):
        recipe = cards.recorded_recipe(root / name, name, pair)
        _evaluate(name, recipe, root / name, problems, Console(), write=write)


def recipes_of(pair: str) -> Mapping[str, ModelRecipe]:
    """Return the recipe of each model of a pair that is trained here."""
    if pair not in RECIPES:
        raise LossyValueError(f"`PAIR` has to be one of {list(RECIPES)}, but is {pair!r}")
    return RECIPES[pair].models


def _roles_of(role: str) -> tuple[str, ...]:
    """Return the roles of an option's value."""
    return ROLES if role == "both" else (role,)


def _evaluate(role: str, recipe: ModelRecipe, folder: Path, problems: int, screen: Console, *, write: bool) -> None:
    """Measure one model and print its accuracy."""
    figures = cards.measure(folder, role, recipe, problems=problems)
    if write:
        cards.write(folder, figures)
    screen.print(
        f"{role}: {figures['correct']} of {problems} answers right ({100 * figures['accuracy']:.1f} %), "
        f"{figures['parameters']:,} parameters"
    )


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command("train-pair")(train_pair)
app.command("evaluate-pair")(evaluate_pair)

if __name__ == "__main__":
    app()
