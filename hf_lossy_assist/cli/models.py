"""Models, tokenizers, heads and prompts that the options of a command name."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
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
from ..config import head_type, place_rule_head
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

DEFAULT_LENGTH = 100
"""Of responses to them, in tokens."""


class Openings(Task):
    """Texts to continue, none of which has a right answer."""

    name = "openings"
    splits = ("test",)

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts

    def examples(self, split: str, n: int) -> list[Example]:
        return [Example(text, "") for text in self.texts[:n]]

    def extract_answer(self, text: str) -> str | None:
        return text.strip() or None


@dataclass(frozen=True, eq=False)
class LoadedModels:
    """A target and a draft with their tokenizer, heads and prompts."""

    target: PreTrainedModel | None  # None where it is behind an API only
    draft: PreTrainedModel | Eagle3 | None  # None where nothing is assisted
    tokenizer: PreTrainedTokenizerBase  # of both models
    # Where prompts come from, and what an answer is; None for models whose answers can't be judged.
    task: Task | None = None
    heads: Mapping[str, Head] = field(default_factory=dict)  # trained heads by the rule that uses them
    texts: Sequence[str] = STORY_OPENINGS  # prompts, where there is no task
    draft_tokenizer: PreTrainedTokenizerBase | None = None  # where the draft has one of its own

    @property
    def models(self) -> Models:
        """The models and heads, as decoding modes take them."""
        return Models(self.target, self.draft, self.heads)

    @property
    def length(self) -> int:
        """The longest response, in tokens, where nothing else is said."""
        return DEFAULT_LENGTH if self.task is None else self.task.max_new_tokens

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
        return (self.task or Openings(self.texts)).examples("test", n)

    def encode(self, examples: Sequence[Example]) -> list[list[int]]:
        """Return the token ids of every prompt, in the tokenizer's chat template if it has one."""
        task = self.task or Openings(self.texts)
        return [task.encode(example, self.tokenizer) for example in examples]


@dataclass(frozen=True)
class ModelOptions:
    """The options that name models, as they were given."""

    pair: str | None = None  # a bundled one
    # Target and draft of one's own: folders or Hub ids.
    model: str | None = None
    assistant: str | None = None
    # Of the weights; None is float32 for a pair with a task, and what they are stored in for others.
    dtype: str | None = None
    # Where they go; ``"auto"`` spreads models of one's own, and None is a GPU if there is one.
    device: str | None = None
    folder: Path | None = None  # to take the models of the pair from
    assistant_tokenizer: str | None = None  # the draft's, where it is not beside it

    def check(self, others: Mapping[str, Any] | None = None, optional: Collection[str] = ()) -> None:
        """Refuse what does not go together, before anything is loaded.

        Models of one's own need ``others`` too, but for those that are ``optional``. A pair brings its own target; a
        draft or a task beside it takes the place of the pair's.
        """
        named = {"--model": self.model, "--assistant": self.assistant, **(others or {})}
        if self.pair is not None and self.model is not None:
            raise LossyValueError(f"`--pair` {self.pair!r} brings its own models; leave out `--model`")
        if self.assistant_tokenizer is not None and self.assistant is None:
            raise LossyValueError(
                f"`--assistant-tokenizer` {self.assistant_tokenizer!r} is of an `--assistant`, which is missing; add it"
            )
        missing = [f"`{name}`" for name, value in named.items() if value is None and name not in optional]
        if self.pair is None and missing:
            raise LossyValueError(f"{' and '.join(missing)} has to be given, or `--pair arithmetic` instead")
        if self.pair is None and self.folder is not None:
            raise LossyValueError(f"`--folder` {str(self.folder)!r} has the models of a `--pair`, but there is none")

    def load(self, task: Task | None = None, *, assisted: bool = True) -> LoadedModels:
        """Load what the options name; ``task`` takes the place of a pair's.

        Where something is to be ``assisted``, a pair without a draft is refused unless the options name one.
        """
        device = self.device or default_device()
        if self.pair is not None:
            one = "cpu" if device == "auto" else device
            known = pairs.task_of(self.pair)
            dtype = self.dtype or ("bfloat16" if known is None else "float32")
            pair = pairs.load(self.pair, dtype=getattr(torch, dtype, "auto"), device=one, folder=self.folder)
            draft, heads = pair.draft, pair.rule_heads
            if self.assistant is not None:
                draft, heads = load_draft("--assistant", self.assistant, dtype, one), {}
            if draft is None and assisted:
                raise LossyValueError(
                    f"`--pair` {self.pair!r} has a target, but no draft yet; name one by `--assistant`, or the folder "
                    "that it is in as 'draft' by `--folder`"
                )
            return LoadedModels(
                pair.target, draft, pair.tokenizer, task or pair.task, heads, draft_tokenizer=self._draft_tokenizer()
            )
        return LoadedModels(
            None if self.model is None else load_model("--model", self.model, self.dtype, device),
            None if self.assistant is None else load_draft("--assistant", self.assistant, self.dtype, device),
            pretrained("--model", self.model or self.assistant, AutoTokenizer),
            task,
            draft_tokenizer=self._draft_tokenizer(),
        )

    def _draft_tokenizer(self) -> PreTrainedTokenizerBase | None:
        if self.assistant_tokenizer is not None:
            return pretrained("--assistant-tokenizer", self.assistant_tokenizer, AutoTokenizer)
        try:
            return None if self.assistant is None else AutoTokenizer.from_pretrained(self.assistant)
        except (OSError, ValueError):
            return None  # a draft without one was made for the target's

    def load_for_task(self, task: Task | None, heads: Sequence[str], *, assisted: bool) -> LoadedModels:
        """Load what the options name with the trained heads beside it; some task has to be there."""
        loaded = self.load(task, assisted=assisted)
        if loaded.task is None:
            raise LossyValueError(f"`--task` has to be given: the pair {self.pair!r} has none of its own")
        return replace(loaded, heads={**loaded.heads, **load_heads(heads, loaded.target.device)})


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
    except (OSError, ValueError, SafetensorError) as error:
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


def head_sources(items: Sequence[str]) -> dict[str, str]:
    """Return where the heads are that ``--head RULE=SOURCE`` names, by the rule that uses them."""
    sources = {}
    for item in items:
        name, equals, source = item.partition("=")
        if not equals or name not in REGISTRY or head_type(REGISTRY[name]) is None:
            with_heads = [rule for rule in REGISTRY if head_type(REGISTRY[rule]) is not None]
            raise LossyValueError(f"`--head` has to be RULE=SOURCE with RULE one of {with_heads}, but is {item!r}")
        sources[name] = source
    return sources


def load_heads(items: Sequence[str], device: torch.device | str) -> dict[str, Head]:
    """Load the heads that ``--head RULE=SOURCE`` names, by the rule that uses them."""
    return {name: place_rule_head(REGISTRY[name], source, device) for name, source in head_sources(items).items()}
