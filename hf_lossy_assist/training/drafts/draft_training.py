"""The loop that trains a draft: steps, held-out measurements, and checkpoints that any kill leaves whole."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ...errors import LossyValueError
from ...mining.files import write_whole
from .draft_batches import DataPosition, DraftBatch, DraftData
from .draft_objective import DraftObjective

CHECKPOINT, LOG = "checkpoint.safetensors", "log.jsonl"
_STATES = ("step", "exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class DraftTrainingSettings:
    """How a draft is trained.

    Attributes
    ----------
    steps
        Steps of the optimiser. A run that goes on may have another number than before; all else has to be equal.
    learning_rate
        The highest.
    warmup
        Steps in which it rises from zero.
    cooldown
        Share of the other steps, at the end, in which it falls to zero as a cosine does.
    weight_decay
        Of matrices.
    bfloat16
        Whether forwards compute in bfloat16; weights and what the optimiser keeps are float32 anyway.
    gamma
        Drafted tokens per round in the held-out measurement.
    """

    steps: int = 2000
    learning_rate: float = 1e-3
    warmup: int = 50
    cooldown: float = 1.0
    weight_decay: float = 0.01
    bfloat16: bool = True
    gamma: int = 5

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of a step."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        length = max(1.0, self.cooldown * (self.steps - self.warmup))
        done = max(0.0, step - (self.steps - length)) / length
        return self.learning_rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


@dataclass(frozen=True)
class HeldOut:
    """What a draft gives on texts whose prompts no training has seen.

    Attributes
    ----------
    kept
        Drafted tokens kept per round, in greedy lossless decoding of the texts that are greedy.
    accuracies
        For each drafted token of a round, how often it is the text's own, given that those before it are.
    loss
        The training loss.
    texts
        How many texts ``kept`` rests on.
    """

    kept: float
    accuracies: tuple[float, ...]
    loss: float
    texts: int


@dataclass(frozen=True)
class DraftProgress:
    """How far a training is: after ``step`` steps, with the mean loss of the latest, and answers' tokens seen."""

    step: int
    tokens_seen: int
    epoch: int
    loss: float
    learning_rate: float
    tokens_per_second: float


@dataclass
class _State:
    """What a checkpoint holds besides tensors."""

    step: int = 0
    tokens_seen: int = 0
    position: DataPosition = field(default_factory=DataPosition)


class DraftTraining:
    """A training run in a folder.

    Parameters
    ----------
    objective
        The draft, and what it is trained for.
    data
        The batches.
    settings
        How to train.
    folder
        Where checkpoints and the log are.
    run
        What else has an influence on the result; a checkpoint of a run with other values is refused.
    accelerator
        Several processes share a step through it.
    """

    def __init__(
        self, objective: DraftObjective, data: DraftData, settings: DraftTrainingSettings, folder: Path,
        run: Mapping[str, Any], accelerator: Accelerator,
    ) -> None:  # fmt: skip
        self.data, self.settings, self.folder = data, settings, folder
        self.objective, self.accelerator = objective, accelerator
        values = {**asdict(settings), **run}
        del values["steps"]
        self._run = json.loads(json.dumps(values))
        matrices = [p for p in objective.parameters() if p.dim() > 1]
        others = [p for p in objective.parameters() if p.dim() <= 1]
        groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
        self._optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)
        self.state = _State()

    def resume(self) -> bool:
        """Go on from the folder's checkpoint; return whether there is one.

        Raises
        ------
        LossyValueError
            When it belongs to another run, or can't be read.
        """
        path = self.folder / CHECKPOINT
        if not path.exists():
            return False
        try:
            with safe_open(path, "pt") as file:
                said = json.loads(file.metadata()["run"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            raise LossyValueError(f"`--out` has a checkpoint that can't be read: {path}: {error}; remove it") from error
        before, now = said["run"], self._run
        if found := [name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)]:
            changes = "; ".join(f"`{name}` was {before.get(name)!r} and is {now.get(name)!r}" for name in found)
            raise LossyValueError(
                f"`--out` has to be a new folder or one of the same run, but in {str(self.folder)!r} {changes}; choose "
                "another folder"
            )
        self.objective.load_state_dict({name: tensors[f"weights.{name}"] for name in self.objective.state_dict()})
        with torch.no_grad():
            for name, parameter in self.objective.named_parameters():
                state = {key: tensors[f"{key}.{name}"] for key in _STATES}
                self._optimizer.state[parameter] = {
                    key: value if key == "step" else value.to(parameter.device) for key, value in state.items()
                }
        position = said["position"]
        self.state = _State(
            said["step"],
            said["tokens_seen"],
            DataPosition(position["epoch"], tuple(position["shards"]), position["taken"]),
        )
        return True

    def save(self) -> None:
        """Write the checkpoint; a kill while it is written leaves the one before."""
        if not self.accelerator.is_main_process:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        tensors = {f"weights.{name}": value for name, value in self.objective.state_dict().items()}
        for name, parameter in self.objective.named_parameters():
            for key in _STATES:
                tensors[f"{key}.{name}"] = self._optimizer.state[parameter][key]
        tensors = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
        said = {**asdict(self.state), "run": self._run}
        write_whole(self.folder / CHECKPOINT, save(tensors, {"run": json.dumps(said)}))

    def train(
        self,
        *,
        checkpoint_seconds: float = 180.0,
        measure_every: int = 100,
        held_out_texts: int = 48,
        on_step: Callable[[DraftProgress], None] = lambda progress: None,
        on_measured: Callable[[int, HeldOut], None] = lambda step, held_out: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> HeldOut:
        """Train until all steps are done, or until ``stopped`` says so; return the last held-out measurement."""
        settings, state = self.settings, self.state
        model = self.accelerator.prepare(self.objective)
        parameters = list(self.objective.parameters())
        model.train()
        held_out = [(batch, self._greedy(batch)) for batch in self.data.held_out(held_out_texts)]
        saved = begun = time.monotonic()
        tokens = 0
        for batch, position in self.data.batches(state.position):
            if state.step >= settings.steps or self._agreed(stopped()):
                break
            for group in self._optimizer.param_groups:
                group["lr"] = settings.learning_rate_at(state.step)
            batch = batch.to(self.accelerator.device)
            self.objective.begin(state.step / settings.steps)
            # A run that goes on drops what it would have dropped.
            torch.manual_seed(state.step * self.data.processes + self.data.process)
            with self._autocast():
                loss = model(batch)
            self.accelerator.backward(loss)
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            self._optimizer.step()
            self._optimizer.zero_grad()
            new = int(self.accelerator.reduce(batch.answers.sum(), "sum"))
            tokens += new
            state.step, state.tokens_seen, state.position = state.step + 1, state.tokens_seen + new, position
            rate = tokens / (time.monotonic() - begun)
            lr = self._optimizer.param_groups[0]["lr"]
            on_step(DraftProgress(state.step, state.tokens_seen, position.epoch, loss.item(), lr, rate))
            if state.step % measure_every == 0 and state.step < settings.steps:
                self._log(measured := self.measure(held_out))
                on_measured(state.step, measured)
            if time.monotonic() - saved > checkpoint_seconds:
                self.save()
                saved = time.monotonic()
        self.save()
        self._log(measured := self.measure(held_out))
        on_measured(state.step, measured)
        return measured

    @torch.no_grad()
    def measure(self, batches: Sequence[tuple[DraftBatch, Tensor]]) -> HeldOut:
        """Measure the draft on held-out batches; with each it is said which of its texts are greedy."""
        self.objective.begin(1.0)
        self.objective.eval()
        rounds = kept = texts = 0
        right, places = torch.zeros(2, self.settings.gamma)
        loss = 0.0
        for batch, greedy in batches:
            batch = batch.to(self.accelerator.device)
            with self._autocast():
                loss += self.objective(batch).item() / len(batches)
                matches = self.objective.matches(batch, self.settings.gamma).cpu()
            for row, answers in enumerate(batch.answers.cpu()):
                begin, end = int(answers.int().argmax()), int(answers.nonzero()[-1])
                known = matches[row, begin:end]
                right += known.cumprod(-1).sum(0)
                places += torch.cat([torch.ones(len(known), 1), known.cumprod(-1)[:, :-1]], dim=-1).sum(0)
                if greedy[row]:
                    texts += 1
                    n, k = rounds_of(known)
                    rounds, kept = rounds + n, kept + k
        self.objective.train()
        accuracies = tuple((right / places.clamp(min=1)).tolist())
        return HeldOut(kept / max(1, rounds), accuracies, loss, texts)

    def _greedy(self, batch: DraftBatch) -> Tensor:
        return self.objective.greedy(batch.to(self.accelerator.device)).cpu()

    def _autocast(self) -> torch.autocast:
        kind = self.accelerator.device.type
        return torch.autocast(kind, torch.bfloat16, enabled=self.settings.bfloat16)

    def _agreed(self, stop: bool) -> bool:
        """Return whether any process wants to stop."""
        if self.accelerator.num_processes == 1:
            return stop
        flag = torch.tensor(int(stop), device=self.accelerator.device)
        return bool(self.accelerator.reduce(flag, "sum"))

    def _log(self, measured: HeldOut) -> None:
        if self.accelerator.is_main_process:
            row = {"step": self.state.step, "tokens_seen": self.state.tokens_seen, **asdict(measured)}
            with suppress(OSError), (self.folder / LOG).open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def rounds_of(matches: Tensor) -> tuple[int, int]:
    """Return the rounds that greedy decoding of a text takes, and the drafted tokens that they keep.

    Parameters
    ----------
    matches
        ``(L, γ)`` whether the drafts behind each token of the answer but the last are the text's own.

    Examples
    --------
    >>> rounds_of(torch.tensor([[True, False], [False, False], [True, True], [True, False]]))
    (2, 3)
    """
    leading = matches.int().cumprod(-1).sum(-1).tolist()
    rounds = kept = at = 0
    while at < len(leading):
        rounds, kept = rounds + 1, kept + leading[at]
        at += leading[at] + 1
    return rounds, kept
