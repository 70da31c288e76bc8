"""Training of a draft by transformers' Trainer, measured on held-out texts."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import reduce
from safetensors.torch import load_model
from torch import Tensor
from torch.nn.functional import pad
from transformers import EvalPrediction, Trainer, TrainerCallback, TrainerState, TrainingArguments

from .draft_data import DraftData, Item, collate
from .draft_objective import DraftObjective

_STATE, _WEIGHTS = "trainer_state.json", "model.safetensors"


class DraftArguments(TrainingArguments):
    """The Trainer's arguments, with one GPU for each process."""

    @property
    def n_gpu(self) -> int:
        return min(1, super().n_gpu)


def draft_arguments(folder: Path, *, steps: int, warmup: int, cooldown: float, **others: Any) -> DraftArguments:
    """Return AdamW's arguments, with a linear warm-up and a cosine down to 1 % of the learning rate.

    The learning rate rises for ``warmup`` steps and falls in the last share ``cooldown`` of the others. Checkpoints are
    written to ``folder``; ``others`` go to :class:`transformers.TrainingArguments`.
    """
    decay = {"num_decay_steps": max(0, round(cooldown * (steps - warmup))), "decay_type": "cosine"}
    return DraftArguments(
        str(folder), max_steps=steps, warmup_steps=warmup, lr_scheduler_type="warmup_stable_decay",
        lr_scheduler_kwargs={**decay, "min_lr_ratio": 0.01}, adam_beta2=0.95, weight_decay=0.01,
        per_device_train_batch_size=1,  # an item of the data is a batch
        eval_strategy="steps", save_strategy="steps", save_total_limit=1, remove_unused_columns=False,
        ddp_find_unused_parameters=False, report_to="none", **others,
    )  # fmt: skip


class DraftTrainer(Trainer):
    """Trains a draft, continues from the last checkpoint, and measures rounds of ``gamma`` tokens on held-out texts."""

    def __init__(
        self, objective: DraftObjective, args: DraftArguments, data: DraftData, held_out: Sequence[Item], gamma: int = 5
    ) -> None:
        batches = [[text] for text in held_out]
        callbacks = [_StopOnSignal()]
        super().__init__(objective, args, collate, data, batches, compute_metrics=_metrics, callbacks=callbacks)
        self.gamma = gamma

    def checkpoint(self) -> Path | None:
        """Return the last complete checkpoint, if any."""
        found = [path.parent for path in Path(self.args.output_dir).glob(f"checkpoint-*/{_STATE}") if _is_json(path)]
        return max(found, key=lambda path: int(path.name.rpartition("-")[2]), default=None)

    def fit(self) -> dict[str, float] | None:
        """Train, and return the final held-out measurement; None if a signal stopped the training."""
        checkpoint, steps = self.checkpoint(), self.args.max_steps
        if checkpoint is not None and int(checkpoint.name.rpartition("-")[2]) >= steps:
            load_model(self.model, checkpoint / _WEIGHTS)
            self.state = TrainerState.load_from_json(checkpoint / _STATE)
        else:
            self.train(resume_from_checkpoint=checkpoint and str(checkpoint))
        if (step := self.state.global_step) < steps:
            return None
        measured = [row for row in self.state.log_history if row["step"] == step and "eval_loss" in row]
        return measured[-1] if measured else self.evaluate()

    def compute_loss(self, model: Any, inputs: Item, *args: Any, **kwargs: Any) -> Tensor:
        return model(**inputs, done=self.state.global_step / self.state.max_steps)

    def prediction_step(self, model: Any, inputs: Item, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor, Tensor]:
        with torch.no_grad(), self.accelerator.autocast():
            loss, matches = self.model(**inputs), self.model.matches(**inputs, gamma=self.gamma)
        places = inputs["answers"] & pad(inputs["answers"], (0, 1))[:, 1:]  # tokens after which a round can begin
        right = matches.int().cumprod(-1) * places[..., None]
        counts = torch.cat([places.sum(1)[:, None], right.sum(1)], dim=1)
        return loss, counts, counts


def _metrics(predicted: EvalPrediction) -> dict[str, float]:
    """Return how many drafted tokens a round keeps, and each one's accuracy, given that those before it are right."""
    counts = predicted.predictions.sum(0).tolist()
    accuracies = {f"accuracy_{k}": counts[k] / max(1, counts[k - 1]) for k in range(1, len(counts))}
    return {"kept": sum(counts[1:]) / max(1, counts[0]), "texts": len(predicted.predictions), **accuracies}


class _StopOnSignal(TrainerCallback):
    """Writes a checkpoint and ends training after the step in which any process gets SIGTERM or SIGINT."""

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.got = False
        self.before = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}

    def _note(self, number: int, frame: Any) -> None:
        self.got = True
        signal.signal(number, self.before[number])  # a second one ends the process

    def on_step_end(self, args: TrainingArguments, state: Any, control: Any, **kwargs: Any) -> None:
        if reduce(torch.tensor(float(self.got), device=args.device), "sum"):
            control.should_save = control.should_training_stop = True

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)


def _is_json(path: Path) -> bool:
    try:
        return bool(json.loads(path.read_text(encoding="utf-8")))
    except ValueError:
        return False
