"""Measured figures of a pair's models, and the model cards that state them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from string import Template
from typing import Any

import torch
import transformers
from huggingface_hub import EvalResult, ModelCardData
from transformers import AutoTokenizer

from .. import __version__
from .evaluation import evaluate
from .pair import load_model, task_of
from .recipe import ModelRecipe
from .training import write_figures

_TEMPLATE = Path(__file__).parent / "card_template.md"


def measure(
    folder: Path,
    role: str,
    recipe: ModelRecipe,
    *,
    pair: str = "arithmetic",
    problems: int = 1000,
    on_batch: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Measure a stored model and write ``figures.json`` and its model card beside the weights.

    Parameters
    ----------
    folder
        The model's folder. It is measured as users get it: from the stored weights, upcast to float32.
    role
        ``"target"`` or ``"draft"``.
    recipe
        How it was trained.
    pair
        The pair it belongs to.
    problems
        How many test problems are put.
    on_batch
        Called with the number of finished problems.

    Returns
    -------
    dict
        The figures.
    """
    model = load_model(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    evaluation = evaluate(model, tokenizer, task_of(pair), problems, split="test", on_batch=on_batch)
    figures = {
        "pair": pair,
        "role": role,
        "accuracy": evaluation.accuracy,
        "correct": evaluation.correct,
        "problems": evaluation.problems,
        "unanswered": evaluation.unanswered,
        "split": "test",
        "parameters": model.num_parameters(),
        "vocabulary": len(tokenizer),
        "recipe": asdict(recipe),
        "versions": {
            "hf_lossy_assist": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "command": f"lossy-assist evaluate-pair --role {role} --problems {problems}",
    }
    write_figures(folder, figures)
    write_card(folder, figures)
    return figures


def read_figures(folder: Path) -> dict[str, Any]:
    """Return the figures that :func:`measure` left beside the weights."""
    return json.loads((folder / "figures.json").read_text())


def write_card(folder: Path, figures: dict[str, Any]) -> None:
    """Write a model's card from its figures."""
    (folder / "README.md").write_text(render_card(figures))


def render_card(figures: dict[str, Any]) -> str:
    """Return a model card in Markdown, with its metadata on top."""
    pair, role = figures["pair"], figures["role"]
    title = f"{pair}-{role}"
    result = EvalResult(
        task_type="text-generation",
        dataset_type=f"hf_lossy_assist/{pair}",
        dataset_name=f"hf_lossy_assist {pair} word problems",
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
    values = figures["recipe"] | {
        "metadata": metadata.to_yaml(),
        "title": title,
        "pair": pair,
        "role": role,
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
