"""Measured figures of a pair's models, and the model cards that state them."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from string import Template
from typing import Any

from huggingface_hub import EvalResult, ModelCardData
from transformers import AutoModelForCausalLM, AutoTokenizer

import hf_lossy_assist
from hf_lossy_assist.pairs import task_of

from .pretraining import write_figures
from .recipe import RECIPES, Cycle, ModelRecipe

_TEMPLATE = Path(__file__).parent / "card_template.md"


def measure(folder: Path, role: str, recipe: ModelRecipe, *, problems: int = 1000) -> dict[str, Any]:
    """Return the figures of a stored model, for :func:`write`: measured as users get it, upcast to float32."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()
    tokenizer, task = AutoTokenizer.from_pretrained(folder, padding_side="left"), task_of(recipe.pair)
    answers = hf_lossy_assist.evaluate(
        model, tokenizer=tokenizer, task=task, modes="plain", limit=problems, batch_size=50
    ).answers
    correct = sum(answer.score == 1 for answer in answers)
    said = zip(task.examples("test", problems), answers, strict=True)
    return {
        "pair": recipe.pair,
        "role": role,
        "accuracy": correct / len(answers),
        "correct": correct,
        "problems": len(answers),
        "unanswered": sum(task.answer(example, answer.text) is None for example, answer in said),
        "split": "test",
        "parameters": model.num_parameters(),
        "vocabulary": len(tokenizer),
        "recipe": asdict(recipe),
        "versions": {
            "hf_lossy_assist": hf_lossy_assist.__version__,
            **{name: version(name) for name in ("torch", "transformers")},
        },
        "command": f"python -m benchmarks.train_pair evaluate-pair --pair {recipe.pair} --role {role} "
        f"--problems {problems}",
    }


def write(folder: Path, figures: dict[str, Any]) -> None:
    """Write ``figures.json`` and the model card beside the weights."""
    write_figures(folder, figures)
    (folder / "README.md").write_text(render_card(figures))


def recorded_recipe(folder: Path, role: str, pair: str = "arithmetic") -> ModelRecipe:
    """Return the recipe in a model's figures, or the published one where it has no figures yet."""
    path = folder / "figures.json"
    if not path.exists():
        return RECIPES[pair].models[role]
    return ModelRecipe.from_dict(json.loads(path.read_text())["recipe"])


def render_card(figures: dict[str, Any]) -> str:
    """Return a model card in Markdown, with its metadata on top."""
    pair, role = figures["pair"], figures["role"]
    title = f"{pair}-{role}"
    result = EvalResult(
        task_type="text-generation",
        dataset_type=f"hf_lossy_assist/{pair}",
        dataset_name=f"hf_lossy_assist {pair}",
        dataset_split=figures["split"],
        metric_type="exact_match",
        metric_name="Exact answers",
        metric_value=figures["accuracy"],
    )
    metadata = ModelCardData(
        model_name=title,
        license="apache-2.0",
        library_name="transformers",
        pipeline_tag="text-generation",
        language="en",
        tags=["hf_lossy_assist", "speculative-decoding", "assisted-generation", pair, role],
        eval_results=[result],
    )
    recipe = ModelRecipe.from_dict(figures["recipe"])
    values = figures["recipe"] | {
        "steps": recipe.steps,
        "cycles": "; ".join(_describe(cycle, RECIPES[pair].harder) for cycle in recipe.cycles),
        "metadata": metadata.to_yaml(),
        "title": title,
        "pair": pair,
        "role": role,
        "trained_on": RECIPES[pair].problems,
        "prompt": task_of(pair).examples(figures["split"], 1)[0].prompt,
        "accuracy": f"{100 * figures['accuracy']:.1f} %",
        "correct": figures["correct"],
        "problems": f"{figures['problems']:,}",
        "split": figures["split"],
        "unanswered": figures["unanswered"],
        "parameters": f"{figures['parameters']:,}",
        "vocabulary": figures["vocabulary"],
        "command": figures["command"],
        "versions": ", ".join(f"{name} {version}" for name, version in figures["versions"].items()),
    }
    return Template(_TEMPLATE.read_text()).substitute(values)


def _describe(cycle: Cycle, harder: str) -> str:
    text = f"{cycle.steps} steps with peak {cycle.peak_lr:g}"
    if cycle.number_weight != 1:
        text += f", numbers counting {cycle.number_weight:g} times"
    if cycle.harder:
        text += f", {harder} (harder than the task)"
    return text
