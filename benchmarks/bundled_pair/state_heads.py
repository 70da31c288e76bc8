"""What the trainings of heads that draft from the bundled target's states share: texts, states, and the command."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from cyclopts import App
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PretrainedConfig, get_wsd_schedule

from benchmarks import application
from hf_lossy_assist import DFlash, Eagle3, pairs

from .steps import Steps, Text, Training

StateHead = Eagle3 | DFlash


@dataclass(frozen=True)
class HeadRecipe:
    """Sizes and schedule; with the seed they determine the head."""

    layers: tuple[int, ...] = (1, 2, 4)  # what it reads: the states that enter layers 1 and 2, and leave layer 3
    own_layers: int = 1
    intermediate: int = 384
    key_value_heads: int = 4
    written: int = 2000  # problems that the target answers greedily
    chunk: int = 250  # of them in a file
    batch: int = 24  # texts in a step: half are the target's answers, half new solutions of the task
    pool: int = 8  # steps whose texts are sorted by length together
    steps: int = 550
    cosine: int = 231  # steps in which the learning rate falls to zero
    beyond: int = 0  # of these steps, how many are left out
    decay: float = 0.9  # of the weight, for each token further on
    peak_lr: float = 2e-3
    warmup: int = 50
    weight_decay: float = 0.01
    seed: int = 0


def answers(pair: pairs.Pair, recipe: HeadRecipe, folder: Path) -> list[Text]:
    """Return the target's greedy answers; chunks that the folder lacks are written first."""
    texts: list[Text] = []
    folder.mkdir(parents=True, exist_ok=True)
    for chunk in range(recipe.written // recipe.chunk):
        path = folder / f"answers-{chunk:03d}.safetensors"
        if not path.exists():
            draws = random.Random(f"{recipe.seed}/answers/{chunk}")
            prompts = [example.prompt for example in pair.task.draw("train", recipe.chunk, draws)]
            inputs = pair.tokenizer(prompts, return_tensors="pt", padding=True)
            output = pair.target.generate(**inputs, do_sample=False, max_new_tokens=pair.task.max_new_tokens)
            rows = [row[row != pair.tokenizer.pad_token_id] for row in output]
            whole = {"ids": pad_sequence(rows, batch_first=True), "starts": inputs["attention_mask"].sum(-1)}
            save_file(whole, path.with_suffix(".partial"))
            os.replace(path.with_suffix(".partial"), path)
            print(f"answered {(chunk + 1) * recipe.chunk} problems")
        tensors = load_file(path)
        for row, start in zip(tensors["ids"], tensors["starts"].tolist(), strict=True):
            texts.append((row[row != pair.tokenizer.pad_token_id], start))
    return texts


def descend(
    pair: pairs.Pair, recipe: HeadRecipe, head: StateHead, written: list[Text],
    loss_of: Callable[[int, list[Text]], Tensor], folder: Path, **options: Any,
) -> StateHead:  # fmt: skip
    """Train a head on the target's answers and on new solutions of the task, half and half."""
    half = recipe.batch // 2

    def drawn(_: int, draws: random.Random) -> list[Text]:
        texts = draws.sample(written, recipe.pool * half)
        for example in pair.task.draw("train", recipe.pool * (recipe.batch - half), draws):
            start = pair.tokenizer(example.prompt)["input_ids"]
            answer = pair.tokenizer(example.solution, add_special_tokens=False)["input_ids"]
            texts.append((torch.tensor([*start, *answer, pair.tokenizer.eos_token_id]), len(start)))
        return texts

    schedule = partial(
        get_wsd_schedule, num_warmup_steps=recipe.warmup, num_decay_steps=recipe.cosine,
        num_training_steps=recipe.steps + recipe.beyond, decay_type="cosine",
    )  # fmt: skip
    inside = nn.ModuleList([head])  # the trainer would write into a head's configuration
    Training(inside, Steps(recipe, drawn), loss_of, schedule, folder, peak_lr=recipe.peak_lr, **options).fit()
    return head


class LayerStates:
    """Reads hidden states of forward passes: those that enter each of some layers, or leave the last one."""

    def __init__(self, model: nn.Module, layers: Sequence[int]) -> None:
        modules = [model.model.embed_tokens, *model.model.layers]
        self._modules = [modules[i] for i in layers]
        self._read: dict[nn.Module, Tensor] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside the block, keep the states of the last forward."""
        hooks = [x.register_forward_hook(lambda own, _, state: self._read.update({own: state})) for x in self._modules]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def pop(self) -> Tensor:
        """Return ``(B, S, k·d)`` the states of the last forward, side by side, and forget them."""
        return torch.cat([self._read.pop(x) for x in self._modules], dim=-1)

    def of(self, model: nn.Module, ids: Tensor) -> Tensor:
        """Return ``(S, k·d)`` the states of a text."""
        with torch.no_grad(), self.watched():
            model(ids[None])
        return self.pop()[0]


def layer_of(kind: type[PretrainedConfig], target: PretrainedConfig, recipe: HeadRecipe) -> PretrainedConfig:
    """Return the configuration of a head's own layers, as wide as the target's."""
    kept = (
        "vocab_size", "hidden_size", "num_attention_heads", "head_dim", "rms_norm_eps", "max_position_embeddings",
        "rope_parameters", "bos_token_id", "eos_token_id",
    )  # fmt: skip
    return kind(
        **{name: getattr(target, name) for name in kept}, num_hidden_layers=recipe.own_layers,
        intermediate_size=recipe.intermediate, num_key_value_heads=recipe.key_value_heads,
    )  # fmt: skip


def study(recipe: HeadRecipe, fit: Callable[[pairs.Pair, Any, Path], StateHead]) -> App:
    """Return the command that trains a head."""

    def train(*, out: Path, threads: int = 1) -> None:
        """Train the head of the bundled target from its seed, and write it as speculators does.

        Parameters
        ----------
        out
            Folder for the head; texts and checkpoints are in OUT/training.
        threads
            Threads of the CPU.
        """
        torch.set_num_threads(threads)
        fit(pairs.load("arithmetic"), recipe, out / "training").to(torch.bfloat16).save_pretrained(out)

    return application(train)
