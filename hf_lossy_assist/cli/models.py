"""Models, tokenizers, heads and prompts that a command's options name."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from transformers.utils.logging import disable_progress_bar

from .. import pairs
from ..acceptors import REGISTRY, head_type, place_rule_head
from ..compat import load_errors
from ..drafting.mtp import mtp_of
from ..drafting.state_head import StateHead
from ..errors import LossyValueError
from ..evaluation.modes import Models
from ..evaluation.requests import PromptList
from ..heads import Head, ModelIdentity
from ..heads.head import load_head
from ..models.prepacked import prepack
from ..models.quantised import quantize_draft
from ..pairs.pair import STATE_HEADS
from ..store.folder import this_process
from ..tasks import Example, Task
from ..values import check_name
from .console import limit_threads

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
)
"""Prompts for models without a task."""


MTP = "mtp"
"""``--assistant`` for the target's own MTP layer."""

# The bundled pair answers this problem right by its usual rules, and `dropmatch` in fewer rounds than `lossless`.
_SHOWN = {"arithmetic": 18}


@dataclass(frozen=True, eq=False)
class LoadedModels:
    """A target and a draft with their tokenizer, heads and prompts."""

    target: PreTrainedModel | None  # None if it is behind an API only
    draft: PreTrainedModel | StateHead | None
    tokenizer: PreTrainedTokenizerBase
    task: Task = field(default_factory=lambda: PromptList(STORY_OPENINGS))
    heads: Mapping[str, Head] = field(default_factory=dict)  # by the rule that uses them
    draft_tokenizer: PreTrainedTokenizerBase | None = None  # if the draft has its own

    @property
    def models(self) -> Models:
        return Models(self.target, self.draft, self.heads, tokenizer=self.tokenizer)

    @property
    def shown(self) -> Example:
        """The problem of commands that show one text."""
        at = _SHOWN.get(self.task.name, 0)
        return self.task.examples("test", at + 1)[at]

    def right(self, example: Example, tokens: Sequence[int]) -> bool:
        """Return whether a response answers a problem of the task."""
        return self.task.correct(example, self.tokenizer.decode(tokens, skip_special_tokens=True))

    def encode(self, examples: Sequence[Example]) -> list[list[int]]:
        """Return every prompt's token ids, in the chat template if the tokenizer has one."""
        return [self.task.encode(example, self.tokenizer) for example in examples]

    def read(self, prompt: str, *, as_question: bool) -> list[int]:
        """Return one prompt's token ids: a text to continue, or a question to a chat model."""
        return self.encode([Example(prompt, "")])[0] if as_question else self.tokenizer(prompt)["input_ids"]


@dataclass(frozen=True)
class ModelOptions:
    """The options that name models, and how they are loaded."""

    pair: str | None = None
    model: str | None = None
    assistant: str | None = None
    dtype: str | None = None
    device: str | None = None
    folder: str | None = None  # with the pair's models
    assistant_tokenizer: str | None = None  # if the draft's folder has none
    prompt_lookup: int | None = None  # tokens that are looked up, in a pair's draft's place
    prepack: bool = False
    draft_dtype: str | None = None
    threads: int | None = None

    @property
    def has_draft(self) -> bool:
        """Whether a model drafts: with prompt lookup, a pair's own is named as ``--assistant draft``."""
        return self.assistant is not None or (self.pair is not None and self.prompt_lookup is None)

    def check(self, others: Mapping[str, Any] | None = None, optional: Collection[str] = ()) -> None:
        """Refuse options that conflict, before anything is loaded; set the number of threads.

        Without a pair, model and assistant and the options in ``others`` are required unless they are ``optional``.
        """
        limit_threads(self.threads)
        named = {"--model": self.model, "--assistant": self.assistant, **(others or {})}
        if self.pair is not None and self.model is not None:
            raise LossyValueError(f"`--pair` {self.pair!r} brings its own models; leave out `--model`")
        if self.assistant_tokenizer is not None and self.assistant is None:
            raise LossyValueError(f"`assistant_tokenizer` {self.assistant_tokenizer!r} needs an `--assistant`; add it")
        if self.prompt_lookup is not None:
            optional = (*optional, "--assistant")
        if self.draft_dtype is not None and (self.assistant == MTP or not self.has_draft):
            raise LossyValueError(f"`--draft-dtype` {self.draft_dtype} needs a draft model; add `--assistant`")
        missing = [f"`{name}`" for name, value in named.items() if value is None and name not in optional]
        if self.pair is None and missing:
            *others, last = missing
            names = f"{', '.join(others)} and {last} have" if others else f"{last} has"
            raise LossyValueError(f"{names} to be given, or `--pair arithmetic` instead")
        if self.pair is None and self.folder is not None:
            raise LossyValueError(f"`folder` {self.folder!r} has the models of a `--pair`, but there is none")

    def load(self, task: Task | None = None) -> LoadedModels:
        """Load models as the options say; ``task`` replaces the pair's."""
        disable_progress_bar()
        loaded = self._load(task)
        if self.draft_dtype is not None and loaded.draft is not None:
            loaded = replace(loaded, draft=quantize_draft(loaded.draft, self.draft_dtype))
        if self.prepack:
            draft = loaded.draft if loaded.draft is None or self.draft_dtype else prepack(loaded.draft)
            loaded = replace(loaded, target=loaded.target and prepack(loaded.target), draft=draft)
        return replace(loaded, draft=mtp_of(loaded.target)) if self.assistant == MTP else loaded

    def _load(self, task: Task | None) -> LoadedModels:
        device, named = self.device or default_device(), None if self.assistant == MTP else self.assistant
        if self.pair is None:
            return LoadedModels(
                None if self.model is None else load_model("--model", self.model, self.dtype, device),
                None if named is None else load_draft("--assistant", named, self.dtype, device),
                pretrained("--model", self.model or named, AutoTokenizer),
                task or PromptList(STORY_OPENINGS),
                draft_tokenizer=self._draft_tokenizer(),
            )
        one = "cpu" if device == "auto" else device
        dtype = self.dtype and getattr(torch, self.dtype, "auto")
        pair = pairs.load(self.pair, dtype=dtype, device=one, folder=self.folder)
        draft, heads, tokenizer = pair.draft, pair.rule_heads, None
        if self.assistant in STATE_HEADS and getattr(pair, self.assistant) is not None:
            draft = getattr(pair, self.assistant)
        elif self.assistant not in (None, "draft"):
            dtype = self.dtype or str(pair.target.dtype).removeprefix("torch.")
            draft, heads = named and load_draft("--assistant", named, dtype, one), {}
            tokenizer = self._draft_tokenizer()
        if not self.has_draft:
            draft = None
        task = task or pair.task or PromptList(STORY_OPENINGS)
        return LoadedModels(pair.target, draft, pair.tokenizer, task, heads, draft_tokenizer=tokenizer)

    def _draft_tokenizer(self) -> PreTrainedTokenizerBase | None:
        if self.assistant_tokenizer is not None:
            return pretrained("assistant_tokenizer", self.assistant_tokenizer, AutoTokenizer)
        try:
            return None if self.assistant in (None, MTP) else AutoTokenizer.from_pretrained(self.assistant)
        except (OSError, ValueError):
            return None  # such a draft shares the target's


def load_model(option: str, source: str, dtype: str | None, device: str) -> PreTrainedModel:
    where = {"device_map": "auto"} if device == "auto" else {}
    model = pretrained(option, source, AutoModelForCausalLM, dtype=dtype or "auto", **where)
    return model.eval() if where else model.to(device).eval()


def load_draft(option: str, source: str, dtype: str | None, device: str) -> PreTrainedModel | StateHead:
    try:
        values, _ = PretrainedConfig.get_config_dict(source)
    except OSError:
        values = {}  # loading the model raises a better error
    kind = next((x for x in STATE_HEADS.values() if x.config_class.describes(values)), None)
    if kind is None:
        return load_model(option, source, dtype, device)
    head = kind.from_pretrained(source, dtype=None if dtype in (None, "auto") else getattr(torch, dtype))
    return head.to(default_device() if device == "auto" else device)


def pretrained(option: str, source: str, loader: Any, **kwargs: Any) -> Any:
    with load_errors(f"`{option}`", source):
        return loader.from_pretrained(source, **kwargs)


def identity_of(option: str, source: str) -> ModelIdentity:
    """Return a model's identity from its configuration; weights may be many gigabytes."""
    config = pretrained(option, source, AutoConfig)
    with torch.device("meta"):
        return ModelIdentity.of(AutoModelForCausalLM.from_config(config))


def default_device() -> str:
    return f"cuda:{this_process().local}" if torch.cuda.is_available() else "cpu"


def read_heads(items: Sequence[str] | None) -> dict[str, Head]:
    """Load the heads of ``--head SOURCE`` and ``--head RULE=SOURCE``, by rule."""
    heads: dict[str, Head] = {}
    for item in items or ():
        name, equals, source = item.partition("=")
        if equals and name.isidentifier():
            check_name("RULE` of `--head", name, [x for x in REGISTRY if head_type(REGISTRY[x]) is not None])
            heads[name] = place_rule_head(REGISTRY[name], source, "cpu")
        else:
            head = load_head(Head, item)
            heads[head.config.rule] = head
    return heads
