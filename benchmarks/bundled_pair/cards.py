"""Measured figures of the pair's models, and the model cards that state them."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from transformers import AutoModelForCausalLM, AutoTokenizer

import hf_lossy_assist

from .recipe import TASK, ModelRecipe

_TEMPLATE = Path(__file__).parent / "card_template.md"


def measure(folder: Path, role: str, recipe: ModelRecipe, *, problems: int = 1000) -> dict[str, Any]:
    """Return the figures of a stored model, for :func:`write`: measured as users get it, upcast to float32."""
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
        "split": "test", "parameters": model.num_parameters(), "vocabulary": len(tokenizer), "recipe": asdict(recipe),
        "versions": {
            "hf_lossy_assist": hf_lossy_assist.__version__,
            **{name: version(name) for name in ("torch", "transformers")},
        },
        "command": f"lossy-assist evaluate --pair arithmetic --modes plain,draft --limit {problems} --batch-size 50",
    }  # fmt: skip


def write(folder: Path, figures: dict[str, Any]) -> None:
    """Write ``figures.json`` and the model card beside the weights."""
    (folder / "figures.json").write_text(json.dumps(figures, indent=2) + "\n")
    (folder / "README.md").write_text(render_card(figures))


def render_card(figures: dict[str, Any]) -> str:
    """Return a model card in Markdown, with its metadata on top."""
    pair, role = figures["pair"], figures["role"]
    result = EvalResult(
        task_type="text-generation", dataset_type=f"hf_lossy_assist/{pair}", dataset_name=f"hf_lossy_assist {pair}",
        dataset_split=figures["split"], metric_type="exact_match", metric_name="Exact answers",
        metric_value=figures["accuracy"],
    )  # fmt: skip
    data = ModelCardData(
        model_name=f"{pair}-{role}", license="apache-2.0", library_name="transformers", pipeline_tag="text-generation",
        language="en", tags=["hf_lossy_assist", "speculative-decoding", "assisted-generation", pair, role],
        eval_results=[result],
    )  # fmt: skip
    prompt = TASK.examples(figures["split"], 1)[0].prompt
    return str(ModelCard.from_template(data, template_path=str(_TEMPLATE), prompt=prompt, **figures)) + "\n"
