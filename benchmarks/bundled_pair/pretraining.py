"""Training of a bundled pair from a seed, on a CPU, resumably."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, pad
from torch.nn.utils.rnn import pad_sequence
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .recipe import EOS, TASK, ModelRecipe, build_model
from .steps import Steps, Text, Training


def texts(recipe: ModelRecipe, tokenizer: PreTrainedTokenizerBase) -> Steps:
    """Return the texts of every step."""

    def drawn(step: int, draws: random.Random) -> list[Text]:
        harder = recipe.cycle_at(step)[0].harder
        examples = TASK.draw("train", recipe.pool * recipe.batch, draws, harder=harder)
        prompts = tokenizer([x.prompt for x in examples])["input_ids"]
        answers = tokenizer([x.solution + EOS for x in examples], add_special_tokens=False)["input_ids"]
        return [(torch.tensor(x + y), len(x)) for x, y in zip(prompts, answers, strict=True)]

    return Steps(recipe, drawn)


def padded(batch: list[Text], pad_id: int) -> tuple[Tensor, Tensor]:
    """Return tokens and which of them are answers, ``(B, S)``.

    Kernels in reduced precision keep memory for each shape that they have met, so there are few.
    """
    ids = pad_sequence([ids for ids, _ in batch], batch_first=True, padding_value=pad_id)
    ids = pad(ids, (0, -ids.shape[1] % 16), value=pad_id)
    places, (begin, end) = torch.arange(ids.shape[1]), torch.tensor([(start, len(ids)) for ids, start in batch]).T
    return ids, (places >= begin[:, None]) & (places < end[:, None])


def rate(recipe: ModelRecipe, step: int) -> float:
    """Return the learning rate of a step: in every cycle up to its peak, then by a cosine to a hundredth of it."""
    cycle, done = recipe.cycle_at(step)
    warm = max(1, int(recipe.warmup * cycle.steps))
    if done < warm:
        return cycle.peak_lr * ((done + 1) / warm)
    fall = 0.5 * (1 + math.cos(math.pi * ((done - warm + 1) / (cycle.steps - warm))))
    return cycle.peak_lr * (0.99 * fall + 0.01)


def position_weights(recipe: ModelRecipe, step: int, before: Tensor, numeric: Tensor) -> Tensor:
    """Return how much each position counts in the loss, from the token ``before`` it.

    ``numeric`` holds the ids of the digits and of the space that precedes a number.
    """
    return torch.where(torch.isin(before, numeric), recipe.cycle_at(step)[0].number_weight, 1.0)


def train_model(
    recipe: ModelRecipe, tokenizer: PreTrainedTokenizerBase, folder: Path, **options: Any
) -> PreTrainedModel:
    """Train one model of a pair; a run that was interrupted goes on from its last checkpoint in the folder."""
    model = build_model(recipe, tokenizer)
    numeric = torch.tensor(tokenizer.convert_tokens_to_ids([*"0123456789", "Ġ"]))

    def loss(step: int, batch: list[Text]) -> Tensor:
        ids, answers = padded(batch, tokenizer.pad_token_id)
        answers = answers[:, 1:]
        logits = model(input_ids=ids).logits[:, :-1]
        losses = cross_entropy(logits[answers].float(), ids[:, 1:][answers], reduction="none")
        weights = position_weights(recipe, step, ids[:, :-1][answers], numeric)
        return (losses * weights).sum() / weights.sum()

    def schedule(optimizer: torch.optim.Optimizer) -> LambdaLR:
        return LambdaLR(optimizer, lambda step: rate(recipe, step))

    options = {"save_steps": 100} | options
    return Training(model, texts(recipe, tokenizer), loss, schedule, folder, beta=0.98, **options).fit()
