"""The recipe of the bundled pair: sizes, schedule, tokenizer."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from hf_lossy_assist.tasks import Arithmetic

PAD, BOS, EOS = "<pad>", "<s>", "</s>"
MAX_LENGTH = 512
TASK = Arithmetic()


@dataclass(frozen=True)
class Cycle:
    """One warm-up and cool-down of the learning rate.

    Positions inside or right before a number count ``number_weight`` times in the loss. That depends on the token
    before a position only, so the distribution to be learned stays the same. ``harder`` trains on what is harder than
    the task: the events of two people interleaved.
    """

    steps: int
    peak_lr: float = 1.5e-3
    number_weight: float = 1.0
    harder: bool = False


@dataclass(frozen=True)
class ModelRecipe:
    """One model of the pair and its training schedule."""

    layers: int
    hidden: int
    heads: int
    intermediate: int
    cycles: tuple[Cycle, ...]
    batch: int = 48
    weight_decay: float = 0.01
    warmup: float = 0.06
    seed: int = 0
    pool: ClassVar[int] = 8  # steps whose problems are sorted by length together

    @property
    def steps(self) -> int:
        """How many steps all cycles have together."""
        return sum(cycle.steps for cycle in self.cycles)

    def cycle_at(self, step: int) -> tuple[Cycle, int]:
        """Return the cycle that a step belongs to, and how many of its steps come before."""
        for cycle in self.cycles[:-1]:
            if step < cycle.steps:
                return cycle, step
            step -= cycle.steps
        return self.cycles[-1], step


RECIPES: Mapping[str, ModelRecipe] = {
    "target": ModelRecipe(
        layers=4, hidden=256, heads=8, intermediate=768,
        cycles=(
            Cycle(2600, harder=True),
            Cycle(1200, 1e-3, number_weight=4.0, harder=True),
            Cycle(400, 8e-4, number_weight=2.0),
        ),
    ),
    "draft": ModelRecipe(
        layers=2, hidden=128, heads=4, intermediate=256, cycles=(Cycle(2000, harder=True), Cycle(500, 1e-3)), seed=1
    ),
}  # fmt: skip
"""The recipe of each model of the pair."""


def build_tokenizer(problems: int = 6000) -> PreTrainedTokenizerFast:
    """Train the pair's byte-level BPE; every digit stays a token of its own."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024, special_tokens=[PAD, BOS, EOS], show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )  # fmt: skip
    examples = TASK.draw("train", problems, random.Random("0/train"), harder=True)
    tokenizer.train_from_iterator((e.prompt + e.solution for e in examples), trainer)
    bos = tokenizer.token_to_id(BOS)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, bos)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, bos_token=BOS, eos_token=EOS, padding_side="left",
        model_max_length=MAX_LENGTH, clean_up_tokenization_spaces=False,
    )  # fmt: skip


def build_model(recipe: ModelRecipe, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """Return a freshly initialised Llama of the recipe's size."""
    torch.manual_seed(recipe.seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=recipe.hidden, intermediate_size=recipe.intermediate,
        num_hidden_layers=recipe.layers, num_attention_heads=recipe.heads, num_key_value_heads=recipe.heads,
        max_position_embeddings=MAX_LENGTH, tie_word_embeddings=True, pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def save_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a model as bfloat16 safetensors together with its tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    model.generation_config.max_length = None
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # safetensors makes it readable for the owner alone
    tokenizer.save_pretrained(folder)
