"""``python -m benchmarks.train_pair``: make the bundled pair again from its seed, and measure it."""

from __future__ import annotations

import dataclasses
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import hf_lossy_assist
from benchmarks.bundled_pair.pretraining import train_model
from benchmarks.bundled_pair.recipe import RECIPES, TASK, Cycle, ModelRecipe, build_tokenizer, save_model
from hf_lossy_assist.pairs import ROLES

from . import application

# Enough to run every stage; such a model answers nothing.
_QUICK = {"layers": 1, "hidden": 32, "heads": 2, "intermediate": 48, "batch": 4, "cycles": (Cycle(15), Cycle(5))}


def measure(folder: Path, role: str, recipe: ModelRecipe, problems: int) -> dict[str, Any]:
    """Return what a stored model answers as users get it, upcast to float32, and where it comes from."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    answers = hf_lossy_assist.evaluate(
        model, tokenizer=tokenizer, task=TASK, modes="plain", limit=problems, batch_size=50
    ).answers
    correct = sum(answer.score == 1 for answer in answers)
    said = zip(TASK.examples("test", problems), answers, strict=True)
    return {
        "pair": TASK.name, "role": role, "accuracy": correct / len(answers), "correct": correct,
        "problems": len(answers), "unanswered": sum(TASK.answer(example, x.text) is None for example, x in said),
        "split": "test", "parameters": model.num_parameters(), "vocabulary": len(tokenizer),
        "recipe": dataclasses.asdict(recipe),
        "versions": {name.replace("-", "_"): version(name) for name in ("hf-lossy-assist", "torch", "transformers")},
        "command": f"lossy-assist evaluate --pair arithmetic --modes plain,draft --limit {problems} --batch-size 50",
    }  # fmt: skip


def train_pair(
    *, out: Path = Path("arithmetic-pair"), role: Literal["target", "draft"] | None = None, threads: int = 1,
    problems: int = 1000, quick: bool = False,
) -> None:  # fmt: skip
    """Train the bundled pair from its seed, measure it, and write weights and figures.

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
        figures = measure(out / name, name, recipe, 20 if quick else problems)
        (out / name / "figures.json").write_text(json.dumps(figures, indent=2) + "\n")
        right = f"{figures['correct']} of {figures['problems']} answers right ({100 * figures['accuracy']:.1f} %)"
        print(f"{name}: {right}, {figures['parameters']:,} parameters")


app = application(train_pair)

if __name__ == "__main__":
    app()
