"""Training on texts that follow from a seed and the step alone, by transformers' trainer: interrupted runs go on."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

Text = tuple[Tensor, int]
"""The tokens of a prompt and its answer, and where the answer begins."""


class Steps(Dataset):
    """The texts of every step. Those of a pool of steps are sorted by length, so that little of a batch is padding.

    ``drawn`` gives the texts of the pool that begins with a step. The recipe has ``seed``, ``steps``, ``pool``, and
    ``batch``, the texts in a step.
    """

    def __init__(self, recipe: Any, drawn: Callable[[int, random.Random], list[Text]]) -> None:
        self.recipe, self._drawn = recipe, drawn
        self._pool = lru_cache(1)(self._cut)

    def __len__(self) -> int:
        return self.recipe.steps

    def __getitem__(self, step: int) -> tuple[int, list[Text]]:
        return step, self._pool(step // self.recipe.pool)[step % self.recipe.pool]

    def _cut(self, pool: int) -> list[list[Text]]:
        draws, batch = random.Random(f"{self.recipe.seed}/{pool}"), self.recipe.batch
        texts = sorted(self._drawn(pool * self.recipe.pool, draws), key=lambda text: len(text[0]))
        cut = [texts[i : i + batch] for i in range(0, len(texts), batch)]
        draws.shuffle(cut)
        return cut


class Training(Trainer):
    """AdamW in float32, with products in bfloat16; ``loss_of`` gives the loss of a step and its texts.

    A run goes on from the last checkpoint of an equal recipe in the folder.
    """

    def __init__(
        self, model: nn.Module, steps: Steps, loss_of: Callable[[int, list[Text]], Tensor],
        schedule: Callable[[torch.optim.Optimizer], LRScheduler], folder: Path, *,
        peak_lr: float = 1.0, beta: float = 0.95, **options: Any,
    ) -> None:  # fmt: skip
        self._loss_of = loss_of
        decayed, plain = ([x for x in model.parameters() if (x.dim() > 1) == kept] for kept in (True, False))
        groups = [{"params": decayed}, {"params": plain, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, peak_lr, betas=(0.9, beta), weight_decay=steps.recipe.weight_decay)
        self._folder = folder / f"{zlib.crc32(repr(steps.recipe).encode()):08x}"
        settings = TrainingArguments(
            str(self._folder), num_train_epochs=1, per_device_train_batch_size=1, train_sampling_strategy="sequential",
            max_grad_norm=1.0, use_cpu=True, dataloader_pin_memory=False, report_to="none", save_total_limit=1,
            use_cache=True, **{"logging_steps": 10, "save_steps": 50} | options,
        )  # fmt: skip
        optimizers = optimizer, schedule(optimizer)
        super().__init__(model, settings, lambda only: only[0], steps, optimizers=optimizers)

    def fit(self) -> nn.Module:
        """Return the trained model."""
        whole = self._folder.glob("checkpoint-*/trainer_state.json")  # what a checkpoint writes last
        last = max((path.parent for path in whole), key=lambda path: int(path.name.split("-")[1]), default=None)
        if last is not None:
            print(f"continuing after {last.name}")
        self.train(resume_from_checkpoint=None if last is None else str(last))
        return self.model.eval()

    def compute_loss(self, model: nn.Module, inputs: tuple[int, list[Text]], *_: Any, **__: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self._loss_of(*inputs)
