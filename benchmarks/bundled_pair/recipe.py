"""The recipe of the bundled pair: sizes, schedule, tokenizer."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hf_lossy_assist.tasks import Arithmetic

PAD, BOS, EOS = "<pad>", "<s>", "</s>"
MAX_LENGTH = 512
# Batches are cut from a pool of problems sorted by length, so that little of a batch is padding.
POOL = 8


@dataclass(frozen=True)
class Cycle:
    """One warm-up and cool-down of the learning rate.

    Positions inside or right before a number count ``number_weight`` times in the loss. That depends on the token
    before a position only, so the distribution to be learned stays the same. ``harder`` trains on what is harder than
    the task, by the pair's recipe.
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
    pair: str = "arithmetic"

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

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ModelRecipe:
        """Return the recipe from ``values`` of ``dataclasses.asdict``."""
        return cls(**values | {"cycles": tuple(Cycle(**cycle) for cycle in values["cycles"])})


@dataclass(frozen=True)
class PairRecipe:
    """The common settings of a pair's models, and the recipe of each.

    ``problems`` names their training data, and ``harder`` the changes in cycles of harder problems; ``task`` draws
    it.
    """

    problems: str
    task: Arithmetic
    vocabulary: int
    models: Mapping[str, ModelRecipe]
    harder: str = ""


RECIPES = {
    "arithmetic": PairRecipe(
        problems="word problems whose answers can be checked",
        harder="the events of two people interleaved",
        task=Arithmetic(),
        vocabulary=1024,
        models={
            "target": ModelRecipe(
                layers=4,
                hidden=256,
                heads=8,
                intermediate=768,
                cycles=(
                    Cycle(2600, harder=True),
                    Cycle(1200, 1e-3, number_weight=4.0, harder=True),
                    Cycle(400, 8e-4, number_weight=2.0),
                ),
            ),
            "draft": ModelRecipe(
                layers=2,
                hidden=128,
                heads=4,
                intermediate=256,
                cycles=(Cycle(2000, harder=True), Cycle(500, 1e-3)),
                seed=1,
            ),
        },
    ),
}
"""The recipe of each bundled pair."""


def build_tokenizer(problems: int = 6000, pair: str = "arithmetic"):
    """Train a pair's byte-level BPE; every digit stays a token of its own."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    recipe = RECIPES[pair]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocabulary,
        special_tokens=[PAD, BOS, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    examples = recipe.task.draw(
        "train", problems, random.Random("0/train"), harder=recipe.models["target"].cycles[0].harder
    )
    tokenizer.train_from_iterator((e.prompt + e.solution for e in examples), trainer)
    bos = tokenizer.token_to_id(BOS)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, bos)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        padding_side="left",
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )


def build_model(recipe: ModelRecipe, tokenizer):
    """Return a freshly initialised Llama of the recipe's size."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(recipe.seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden,
        intermediate_size=recipe.intermediate,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config)


def batches(recipe: ModelRecipe, tokenizer, first_step: int) -> Iterator[tuple]:
    """Yield ``(input_ids, labels)`` of every step from ``first_step`` on; step ``i`` is always the same."""
    for pool in range(first_step // POOL, -(-recipe.steps // POOL)):
        for offset, rows in enumerate(_pool(recipe, tokenizer, pool)):
            if first_step <= pool * POOL + offset < recipe.steps:
                yield _collate(rows, tokenizer)


def _pool(recipe: ModelRecipe, tokenizer, pool: int) -> list[list[tuple[list[int], list[int]]]]:
    rng = random.Random(f"{recipe.seed}/{pool}")
    examples = RECIPES[recipe.pair].task.draw(
        "train", POOL * recipe.batch, rng, harder=recipe.cycle_at(pool * POOL)[0].harder
    )
    prompts = tokenizer([e.prompt for e in examples])["input_ids"]
    answers = tokenizer([e.solution + EOS for e in examples], add_special_tokens=False)["input_ids"]
    rows = sorted(zip(prompts, answers, strict=True), key=lambda row: len(row[0]) + len(row[1]))
    cut = [rows[i : i + recipe.batch] for i in range(0, len(rows), recipe.batch)]
    rng.shuffle(cut)
    return cut


def _collate(rows: list[tuple[list[int], list[int]]], tokenizer) -> tuple:
    import torch

    # Few different shapes: kernels in reduced precision keep memory for each shape they have met.
    length = -(-max(len(prompt) + len(answer) for prompt, answer in rows) // 16) * 16
    ids = torch.full((len(rows), length), tokenizer.pad_token_id)
    labels = torch.full((len(rows), length), -100)
    for row, (prompt, answer) in enumerate(rows):
        end = len(prompt) + len(answer)
        ids[row, :end] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : end] = torch.tensor(answer)
    return ids, labels
