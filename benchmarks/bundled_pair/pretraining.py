"""Training of a bundled pair from a seed, on a CPU, resumably."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch.optim.lr_scheduler import LambdaLR
from transformers.optimization import get_cosine_with_min_lr_schedule_with_warmup_lr_rate

from .recipe import ModelRecipe, batches, build_model


def cycle_schedule(recipe: ModelRecipe, optimizer: torch.optim.Optimizer, step: int) -> LambdaLR:
    """Return the schedule of a step's cycle: a warm-up to its peak, then a cosine down to a hundredth of it."""
    cycle, done = recipe.cycle_at(step)
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] = cycle.peak_lr
    warm = max(1, int(recipe.warmup * cycle.steps))
    return get_cosine_with_min_lr_schedule_with_warmup_lr_rate(
        optimizer, warm, cycle.steps, last_epoch=done - 1, min_lr_rate=0.01
    )


def position_weights(recipe: ModelRecipe, step: int, before: torch.Tensor, numeric: torch.Tensor) -> torch.Tensor:
    """Return how much each position counts in the loss, from the token ``before`` it.

    ``numeric`` holds the ids of the digits and of the space that precedes a number.
    """
    return torch.where(torch.isin(before, numeric), recipe.cycle_at(step)[0].number_weight, 1.0)


def save_checkpoint(path: Path, step: int, model, optimizer, recipe) -> None:
    """Write weights and optimizer state, so that the file is always whole."""
    tensors = {f"model.{k}": v for k, v in model.named_parameters()}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state[parameter].items():
            tensors[f"optimizer.{key}.{name}"] = value
    partial = path.with_suffix(".partial")
    save_file(
        {k: v.detach().contiguous() for k, v in tensors.items()},
        partial,
        {"step": str(step), "recipe": repr(recipe)},
    )
    os.replace(partial, path)


def load_checkpoint(path: Path, model, optimizer, recipe) -> int:
    """Read weights and optimizer state; return how many steps are done, none if the file is of another recipe."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    if metadata["recipe"] != repr(recipe):
        return 0
    tensors = load_file(path)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[f"model.{name}"])
            optimizer.state[parameter] = {
                key: tensors[f"optimizer.{key}.{name}"] for key in ("step", "exp_avg", "exp_avg_sq")
            }
    return int(metadata["step"])


def train_model(
    recipe: ModelRecipe,
    tokenizer,
    checkpoint: Path,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
    checkpoint_every: int = 100,
):
    """Train one model of a pair, with weights in float32; continue from a ``checkpoint`` of an equal recipe.

    Every step's batch follows from the recipe's seed and the step alone. The checkpoint is a safetensors file with
    weights and optimizer state. ``on_step`` is called with the number of finished steps and the last loss.
    """
    model = build_model(recipe, tokenizer).train()
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98))
    first = load_checkpoint(checkpoint, model, optimizer, recipe) if checkpoint.exists() else 0
    numeric = torch.tensor(tokenizer.convert_tokens_to_ids([*"0123456789", "Ġ"]))
    on_step(first, float("nan"))
    for step, (ids, labels) in enumerate(batches(recipe, tokenizer, first), start=first):
        if step == first or recipe.cycle_at(step)[1] == 0:
            schedule = cycle_schedule(recipe, optimizer, step)
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(input_ids=ids).logits[:, :-1]
        answers = labels[:, 1:] != -100
        losses = torch.nn.functional.cross_entropy(logits[answers].float(), labels[:, 1:][answers], reduction="none")
        weights = position_weights(recipe, step, ids[:, :-1][answers], numeric)
        loss = (losses * weights).sum() / weights.sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % checkpoint_every == 0:
            save_checkpoint(checkpoint, step + 1, model, optimizer, recipe)
        on_step(step + 1, losses.mean().item())
    return model.eval()


def save_model(model, tokenizer, folder: Path) -> None:
    """Write a model as bfloat16 safetensors together with its tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    generation_config = model.generation_config
    generation_config.max_length = None
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # safetensors makes it readable for the owner alone
    tokenizer.save_pretrained(folder)


def write_figures(folder: Path, figures: dict) -> None:
    """Keep measured figures beside the weights, where the model card and the tests read them."""
    (folder / "figures.json").write_text(json.dumps(figures, indent=2) + "\n")
