"""Models, tokenizers, heads and prompts that a command's options name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
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
from ..compat.models import load_errors
from ..drafting.mtp import mtp_of
from ..drafting.state_head import StateHead
from ..evaluation.modes import DecodingMode, Models, modes_of
from ..evaluation.requests import PromptList
from ..heads import Head, ModelIdentity
from ..heads.head import load_head
from ..integrations.vllm.engines import VllmEngines, vllm_engines, vllm_has
from ..models.prepacked import prepack
from ..models.quantised import quantize_draft
from ..pairs.pair import STATE_HEADS
from ..store.folder import this_process
from ..tasks import Example, Task
from ..values import check_name
from . import options
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


# The bundled pair answers this problem right by its usual rules, and `dropmatch` in fewer rounds than `lossless`.
_SHOWN = {"arithmetic": 18}


@dataclass(frozen=True, eq=False)
class LoadedModels:
    """A target and a draft with their tokenizer, heads and prompts."""

    target: PreTrainedModel | None  # None if it is behind an API only
    draft: PreTrainedModel | StateHead | None
    tokenizer: PreTrainedTokenizerBase
    task: Task
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

    def read(self, prompt: str, *, as_question: bool) -> list[int]:
        """Return one prompt's token ids: a text to continue, or a question to a chat model."""
        asked = self.task.encode(Example(prompt, ""), self.tokenizer) if as_question else None
        return self.tokenizer(prompt)["input_ids"] if asked is None else asked


@dataclass(frozen=True)
class Setup:
    """Models, prompts and ways to decode, as the options of a command name them."""

    models: options.Models
    decoding: options.Sampling
    prompts: options.Prompts = options.Prompts()
    measuring: options.Measuring = options.Measuring()
    usual_gamma: int = 5  # where neither an option nor a mode says it
    split: str | None = "test"  # None for the task's first
    assistant_tokenizer: str | None = None  # if the draft's folder has none

    def __post_init__(self) -> None:
        limit_threads(self.models.threads)

    @property
    def temperature(self) -> float | None:
        return (self.decoding.temperature or 0.9) if self.decoding.sample else None

    @property
    def top_p(self) -> float:
        return self.decoding.top_p or 1.0

    @property
    def seed(self) -> int:
        return self.decoding.seed or 0

    @property
    def gamma(self) -> int | str:
        alone = None if self.has_draft else self.decoding.prompt_lookup
        return next(x for x in (alone, self.decoding.gamma, self.usual_gamma) if x is not None)

    @cached_property
    def has_draft(self) -> bool:
        return self.models.has_draft(self.decoding.prompt_lookup)

    @cached_property
    def heads(self) -> dict[str, Head]:
        return read_heads(self.models.head)

    @cached_property
    def vllm(self) -> VllmEngines | None:
        """What decodes in the place of this process, or beside it."""
        return vllm_engines("vllm" in self.measuring.engine, self.measuring.vllm_python, self.models.threads)

    def modes(self, text: str, heads: Mapping[str, Head]) -> list[DecodingMode]:
        """Read modes, in the engines that are to run them."""
        modes = modes_of(text, self.gamma, self.temperature, self.top_p, heads)
        if self.measuring.engine == "hf":
            return modes
        if self.measuring.engine == "vllm":
            return self.vllm.modes(modes)
        return [*modes, *self.vllm.modes(filter(vllm_has, modes))]

    @cached_property
    def task(self) -> Task | None:
        """The prompts that are named: of a task, of a file without right answers, or of the pair."""
        if self.prompts.loaded is None and self.models.pair is not None:
            return pairs.task_of(self.models.pair)
        return self.prompts.loaded

    @property
    def chosen_split(self) -> str | None:
        return self.prompts.chosen_split(self.split)

    @property
    def is_scored(self) -> bool:
        """Whether the prompts have a task's score: a named task's, or that of a pair."""
        return self.prompts.task is not None or (self.prompts.data is None and self.task is not None)

    def load(self) -> LoadedModels:
        """Load the models; heads and prompts that can't be read are refused before."""
        disable_progress_bar()
        heads, task, named = self.heads, self.task, self.models
        if task is not None and self.prompts.loaded is None:
            task.examples(self.chosen_split or task.splits[0], 1)
        loaded = self._load(task or PromptList(STORY_OPENINGS))
        if named.draft_dtype is not None and loaded.draft is not None:
            loaded = replace(loaded, draft=quantize_draft(loaded.draft, named.draft_dtype))
        if named.prepack:
            draft = loaded.draft if loaded.draft is None or named.draft_dtype else prepack(loaded.draft)
            loaded = replace(loaded, target=loaded.target and prepack(loaded.target), draft=draft)
        if named.assistant == options.MTP:
            loaded = replace(loaded, draft=mtp_of(loaded.target))
        return replace(loaded, heads={**loaded.heads, **heads})

    def _load(self, task: Task) -> LoadedModels:
        named = self.models
        device, assistant = (
            named.device or default_device(),
            None if named.assistant == options.MTP else named.assistant,
        )
        if named.pair is None:
            return LoadedModels(
                None if named.model is None else load_model("--model", named.model, named.dtype, device),
                None if assistant is None else load_draft("--assistant", assistant, named.dtype, device),
                pretrained("--model", named.model or assistant, AutoTokenizer),
                task,
                draft_tokenizer=self._draft_tokenizer(),
            )
        one = "cpu" if device == "auto" else device
        dtype = named.dtype and getattr(torch, named.dtype, "auto")
        pair = pairs.load(named.pair, dtype=dtype, device=one, folder=named.folder)
        draft, heads, tokenizer = pair.draft, pair.rule_heads, None
        if named.assistant in STATE_HEADS and getattr(pair, named.assistant) is not None:
            draft = getattr(pair, named.assistant)
        elif named.assistant not in (None, "draft"):
            dtype = named.dtype or str(pair.target.dtype).removeprefix("torch.")
            draft, heads = assistant and load_draft("--assistant", assistant, dtype, one), {}
            tokenizer = self._draft_tokenizer()
        if not self.has_draft:
            draft = None
        return LoadedModels(pair.target, draft, pair.tokenizer, task, heads, draft_tokenizer=tokenizer)

    def _draft_tokenizer(self) -> PreTrainedTokenizerBase | None:
        if self.assistant_tokenizer is not None:
            return pretrained("--assistant-tokenizer", self.assistant_tokenizer, AutoTokenizer)
        try:
            return (
                None
                if self.models.assistant in (None, options.MTP)
                else AutoTokenizer.from_pretrained(self.models.assistant)
            )
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
