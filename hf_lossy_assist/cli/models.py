"""Models, tokenizers, heads and prompts that the options of a command name."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from .. import pairs
from ..acceptors import REGISTRY
from ..config import head_type, place_head
from ..drafting.eagle3 import Eagle3
from ..drafting.eagle3_config import Eagle3Config
from ..errors import LossyValueError
from ..evaluation.modes import Models
from ..heads import Head, ModelIdentity
from ..mining.mining_run import this_process
from ..tasks import Example, Task

STORY_OPENINGS = (
    "Once upon a time, there was a little girl named Lily.",
    "Once upon a time, there was a big brown bear who lived in the forest.",
    "One day, a boy named Tim went to the park with his mom.",
    "Tom and Sue were best friends. They liked to play",
    "The little cat was very sad because",
    "One sunny morning, a small bird wanted to fly",
    "Ben had a new red ball. He took it outside and",
    "There was once an old man who had a magic box.",
    "Mia saw a big dog near the house. She was scared, but",
    "It was raining, so the children had to stay inside.",
    "A little fish lived in a blue lake. Every day",
    "Sam wanted to bake a cake for his grandma.",
    "Once there was a tiny mouse who was always hungry.",
    "Anna lost her favorite doll. She looked under the bed and",
    "In a small town, there was a shop full of toys.",
    "The sun was hot and Max wanted to swim.",
    'A frog sat on a rock. "Hello," said the frog,',
    "Lucy found a shiny key in the garden.",
    "One night, the moon was very bright and",
    "Jack and his dad went to the farm to see the animals.",
)
"""Prompts for models without a task."""


@dataclass(frozen=True, eq=False)
class LoadedModels:
    """A target and a draft with their tokenizer, heads and prompts."""

    target: PreTrainedModel | None  # None where it is behind an API only
    draft: PreTrainedModel | Eagle3
    tokenizer: PreTrainedTokenizerBase  # of both models
    # Where prompts come from, and what an answer is; None for models whose answers can't be judged.
    task: Task | None = None
    heads: Mapping[str, Head] = field(default_factory=dict)  # trained heads by the rule that uses them
    texts: Sequence[str] = STORY_OPENINGS  # prompts, where there is no task

    @property
    def models(self) -> Models:
        """The models and heads, as decoding modes take them."""
        return Models(self.target, self.draft, self.heads)

    @property
    def by_role(self) -> dict[str, PreTrainedModel]:
        """The models that are loaded, by their roles."""
        return {"draft": self.draft} if self.target is None else {"target": self.target, "draft": self.draft}

    def asked(self, option: str, file: Path | None) -> LoadedModels:
        """Return the same models with the lines of a file as their prompts, if there is one."""
        if file is None:
            return self
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        if not lines:
            raise LossyValueError(f"`{option}` has to hold one prompt a line, but {str(file)!r} has none")
        return replace(self, task=None, texts=lines)

    def examples(self, n: int) -> list[Example]:
        """Return the first ``n`` prompts."""
        if self.task is not None:
            return self.task.examples("test", n)
        return [Example(text, "") for text in self.texts[:n]]

    def encode(self, examples: Sequence[Example]) -> list[list[int]]:
        """Return the token ids of every prompt."""
        if self.task is not None:
            return [self.task.encode(example, self.tokenizer) for example in examples]
        return self.tokenizer([example.prompt for example in examples])["input_ids"]


@dataclass(frozen=True)
class ModelOptions:
    """The options that name models, as they were given."""

    pair: str | None = None  # a bundled one
    # Target and draft of one's own: folders or Hub ids.
    model: str | None = None
    assistant: str | None = None
    dtype: str | None = None  # of the weights; None is float32 for a pair, and what they are stored in for others
    # Where they go; ``"auto"`` spreads models of one's own, and None is a GPU if there is one.
    device: str | None = None
    folder: Path | None = None  # to take the models of the pair from

    def check(self, others: Mapping[str, Any] | None = None, optional: Collection[str] = ()) -> None:
        """Refuse what does not go together, before anything is loaded.

        A pair makes ``others`` superfluous, and models of one's own need them, but for those that are ``optional``.
        """
        named = {"--model": self.model, "--assistant": self.assistant, **(others or {})}
        given = [f"`{name}`" for name, value in named.items() if value is not None]
        if self.pair is not None and given:
            raise LossyValueError(f"`--pair` {self.pair!r} brings its own models; leave out {', '.join(given)}")
        missing = [f"`{name}`" for name in named if f"`{name}`" not in given and name not in optional]
        if self.pair is None and missing:
            raise LossyValueError(f"{' and '.join(missing)} has to be given, or `--pair arithmetic` instead")
        if self.pair is None and self.folder is not None:
            raise LossyValueError(f"`--folder` {str(self.folder)!r} has the models of a `--pair`, but there is none")

    def load(self, task: Task | None = None) -> LoadedModels:
        """Load what the options name; ``task`` is that of models of one's own."""
        device = self.device or default_device()
        if self.pair is not None:
            pair = pairs.load(
                self.pair, dtype=getattr(torch, self.dtype or "float32", "auto"),
                device="cpu" if device == "auto" else device, folder=self.folder,
            )  # fmt: skip
            if pair.draft is None:
                raise LossyValueError(
                    f"`--pair` {self.pair!r} has a target, but no draft yet; train one, and name the folder that it is "
                    "in as 'draft' by `--folder`, or load the target alone with `hf_lossy_assist.pairs.load`"
                )
            return LoadedModels(pair.target, pair.draft, pair.tokenizer, pair.task, pair.rule_heads)
        return LoadedModels(
            None if self.model is None else load_model("--model", self.model, self.dtype, device),
            load_draft("--assistant", self.assistant, self.dtype, device),
            pretrained("--model", self.model or self.assistant, AutoTokenizer),
            task,
        )


def judged_pair(name: str) -> pairs.Pair:
    """Load a pair whose answers can be told right from wrong."""
    if pairs.task_of(name) is None:
        raise LossyValueError(f"`--pair` {name!r} has no task that judges answers, but this command counts right ones")
    return pairs.load(name)


def load_model(option: str, source: str, dtype: str | None, device: str) -> PreTrainedModel:
    """Load one model for inference."""
    where = {"device_map": "auto"} if device == "auto" else {}
    model = pretrained(option, source, AutoModelForCausalLM, dtype=dtype or "auto", **where)
    return model.eval() if where else model.to(device).eval()


def load_draft(option: str, source: str, dtype: str | None, device: str) -> PreTrainedModel | Eagle3:
    """Load what drafts: a model, or an EAGLE-3 head."""
    try:
        values, _ = PretrainedConfig.get_config_dict(source)
    except OSError:
        values = {}  # whoever loads a model says what is wrong
    if not Eagle3Config.describes(values):
        return load_model(option, source, dtype, device)
    head = Eagle3.from_pretrained(source, dtype=None if dtype in (None, "auto") else getattr(torch, dtype))
    return head.to(default_device() if device == "auto" else device)


def pretrained(option: str, source: str, loader: Any, **kwargs: Any) -> Any:
    """Load a model, tokenizer or configuration that an option names."""
    try:
        return loader.from_pretrained(source, **kwargs)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise LossyValueError(
            f"`{option}` has to be a causal language model in a folder or on the Hub, but is {source!r}: {reason}"
        ) from error


def identity_of(option: str, source: str) -> ModelIdentity:
    """Return the identity of a model from its configuration alone: the weights may be many gigabytes."""
    config = pretrained(option, source, AutoConfig)
    with torch.device("meta"):
        return ModelIdentity.of(AutoModelForCausalLM.from_config(config))


def default_device() -> str:
    """Return this process's GPU if there is one, else the CPU."""
    return f"cuda:{this_process().local}" if torch.cuda.is_available() else "cpu"


def load_heads(items: Sequence[str], device: torch.device | str) -> dict[str, Head]:
    """Load the heads that ``--head RULE=SOURCE`` names, by the rule that uses them."""
    heads = {}
    for item in items:
        name, equals, source = item.partition("=")
        if not equals or name not in REGISTRY or head_type(REGISTRY[name]) is None:
            with_heads = [rule for rule in REGISTRY if head_type(REGISTRY[rule]) is not None]
            raise LossyValueError(f"`--head` has to be RULE=SOURCE with RULE one of {with_heads}, but is {item!r}")
        heads[name] = place_head(REGISTRY[name], source, device)
    return heads
