"""The options that commands share: a frozen dataclass a group, with each option documented where it stands."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from cyclopts import Group, Parameter

from ..errors import LossyValueError
from ..generation.spelling import FORM
from ..tasks import Task
from ..tasks.lookup import SHIPPED, load
from ..values import json_or_text

MODELS, PROMPTS, DECODING, MEASURING, OUTPUT = map(
    Group.create_ordered, ("Models", "Prompts", "Decoding", "Measuring", "Output")
)
_SETTING = re.compile(r":(?=\w+=)")  # begins a task's setting
MTP = "mtp"
"""``--assistant`` for the target's own MTP layer."""


def must(rule: str, holds: Callable[[Any], bool]) -> Parameter:
    """Return what refuses a value that breaks a rule, before anything is imported."""

    def check(_: Any, value: Any) -> None:
        if value is not None and not holds(value):
            raise ValueError(f"It has to be {rule}.")

    return Parameter(validator=check)


AT_LEAST_0 = must("at least 0", lambda x: x >= 0)
AT_LEAST_1 = must("at least 1", lambda x: x >= 1)
POSITIVE = must("a number > 0", lambda x: 0 < x < inf)
SHARE = must("a number > 0 and <= 1", lambda x: 0 < x <= 1)


def commas(kind: type) -> Parameter:
    """Return what reads numbers separated by commas."""

    def read(_: Any, tokens: Any) -> tuple:
        try:
            return tuple(map(kind, tokens[0].value.split(",")))
        except ValueError:
            raise ValueError(f"{tokens[0].value!r} is not a list of numbers separated by commas.") from None

    return Parameter(converter=read, n_tokens=1)


PairName = Literal["arithmetic", "qwen-coder"]
Out = Annotated[Path | None, Parameter(group=OUTPUT, help="Folder for the results; an interrupted run goes on there.")]
Limit = Annotated[int, AT_LEAST_1, Parameter(group=PROMPTS, help="The most prompts; a repeated command may raise it.")]
BatchSize = Annotated[int, AT_LEAST_1, Parameter(group=PROMPTS, help="Prompts that are answered together.")]
MaxNewTokens = Annotated[
    int | None, AT_LEAST_1, Parameter(group=DECODING, help="The longest response; the task's by default.")
]
Longest = Annotated[int, AT_LEAST_1, Parameter(group=DECODING, help="The longest response.")]
Modes = Annotated[
    str,
    Parameter(
        group=DECODING,
        help=f"Each plain, draft, stock, everything, {FORM}, or a calibrated folder, separated by commas. "
        "`lossy-assist rules` lists the rules, and `lossy-assist rules NAME` a rule's settings.",
    ),
]
Prompt = Annotated[str | None, Parameter(help="The text to continue. With --pair: a test problem by default.")]


@Parameter(name="*", group=MODELS)
@dataclass(frozen=True)
class Models:
    """A target and a draft, and how they are loaded."""

    pair: PairName | None = None
    "A pair instead of --model and --assistant."
    model: str | None = None
    "The target: a folder or a Hub id."
    assistant: str | None = None
    "The draft: a folder, a Hub id, mtp for the target's own layer, or a pair's draft, eagle3 or dflash."
    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None = None
    "The weights' type; float32 with --pair arithmetic, else as stored."
    device: str | None = None
    "cpu, cuda:0, …, or auto to spread the models; a GPU if there is one."
    folder: str | None = None
    "A folder with the pair's `target` and `draft`."
    prepack: bool = False
    "Order bfloat16 or float32 weights for this CPU's kernels, once."
    threads: Annotated[int | None, AT_LEAST_1] = None
    "CPU threads; torch's choice by default."

    draft_dtype: ClassVar[Any] = None
    head: ClassVar[Any] = ()

    def has_draft(self, lookup: int | None = None) -> bool:
        """Whether a model drafts: with prompt lookup, a pair's own is named as ``--assistant draft``."""
        return self.assistant is not None or (self.pair is not None and lookup is None)

    def check(self, others: Mapping[str, Any], optional: Collection[str] = (), lookup: int | None = None) -> None:
        """Refuse options that conflict, before anything is loaded.

        Without a pair, model and assistant and the options in ``others`` are required unless they are ``optional``.
        """
        named = {"--model": self.model, "--assistant": self.assistant, **others}
        if self.pair is not None and self.model is not None:
            raise LossyValueError(f"`--pair` {self.pair!r} brings its own models; leave out `--model`")
        if lookup is not None:
            optional = (*optional, "--assistant")
        if self.draft_dtype is not None and (self.assistant == MTP or not self.has_draft(lookup)):
            raise LossyValueError(f"`--draft-dtype` {self.draft_dtype} needs a draft model; add `--assistant`")
        missing = [f"`{name}`" for name, value in named.items() if value is None and name not in optional]
        if self.pair is None and missing:
            *others, last = missing
            names = f"{', '.join(others)} and {last} have" if others else f"{last} has"
            raise LossyValueError(f"{names} to be given, or `--pair arithmetic` instead")
        if self.pair is None and self.folder is not None:
            raise LossyValueError(f"`--folder` {self.folder!r} has the models of a `--pair`, but there is none")


@dataclass(frozen=True)
class RoundedModels(Models):
    """Models whose draft may be rounded."""

    draft_dtype: Literal["int8", "int4"] | None = None
    "Round the draft's weights; as --dtype by default."


@dataclass(frozen=True)
class ModelsWithHeads(RoundedModels):
    """Models with heads for the rules that need them."""

    head: Annotated[list[str], Parameter(show_default=False)] = ()
    "A trained head, [RULE=]SOURCE: a folder or a Hub id. Repeatable."


@Parameter(name="*", group=PROMPTS)
@dataclass(frozen=True)
class Prompts:
    """Problems of a task, or prompts of a file."""

    task: Annotated[
        str | None,
        Parameter(
            help=f"{', '.join(SHIPPED)}, or package.module:Name of your own; a pair's own by default. "
            "Its settings follow: NAME:KEY=VALUE…, as in gsm8k:shots=8."
        ),
    ] = None
    data: str | None = None
    "A file for the task to read; without --task, one prompt a line."
    split: str | None = None
    "The task's split; test by default, and for `mine` its first."

    @property
    def settings(self) -> dict[str, Any]:
        """The task's settings."""
        _, *parts = _SETTING.split(self.task or "")
        return {key: json_or_text(value) for key, _, value in (part.partition("=") for part in parts)}

    @cached_property
    def loaded(self) -> Task | None:
        """The task, or the file's prompts, if either is named."""
        if self.task is not None:
            return load(_SETTING.split(self.task)[0], self.data, **self.settings)
        return None if self.data is None else load("prompts", self.data, split=self.split or "test")

    def chosen_split(self, default: str | None) -> str | None:
        return self.split or self.settings.get("split", default)

    def check(self, split: str | None = "test") -> None:
        """Refuse prompts that can't be read; without a split, those of the task's first."""
        if self.loaded is not None:
            self.loaded.examples(self.chosen_split(split) or self.loaded.splits[0], 1)


@Parameter(name="*", group=DECODING)
@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn."""

    sample: bool = False
    "Draw tokens instead of taking the likeliest."
    temperature: Annotated[float | None, POSITIVE] = None
    "The temperature of --sample; 0.9 by default, for `mine` 1, for `generate` the model's own."
    seed: Annotated[int | None, AT_LEAST_0] = None
    "The seed of all draws; each further prompt adds one."

    top_p: ClassVar[Any] = None
    gamma: ClassVar[Any] = None
    prompt_lookup: ClassVar[Any] = None

    def check(self) -> None:
        """Refuse settings of draws where nothing is drawn."""
        for name, value in (("temperature", self.temperature), ("top-p", self.top_p)):
            if value is not None and not self.sample:
                raise LossyValueError(f"`--{name}` {value} needs `--sample`; add it, or leave it out")


@dataclass(frozen=True)
class Decoding(Sampling):
    """How tokens are drawn, and from which."""

    top_p: Annotated[float | None, SHARE] = None
    "With --sample: draw from the likeliest tokens that have this probability together."


@dataclass(frozen=True)
class Drafting(Decoding):
    """How tokens are drafted and drawn."""

    gamma: Annotated[
        int | Literal["auto"] | None, must("at least 0, or auto", lambda x: x == "auto" or 0 <= x < 10**18)
    ] = None
    "Drafted tokens a round where a mode does not say, or auto; 5 by default, and 8 for `inspect`."
    prompt_lookup: Annotated[int | None, AT_LEAST_1] = None
    "Look up to so many tokens up in the text, before an --assistant drafts, or without a model."


@Parameter(name="*", group=MEASURING)
@dataclass(frozen=True)
class Measuring:
    """What is measured, how, and in which engine."""

    measure: Literal["task", "rouge", "likelihood"] | None = None
    "The task's score, ROUGE-L to the reference's text, or the target's p, geometric mean."
    reference: str | None = None
    "The mode to compare with; plain, else lossless by default."
    repeats: Annotated[int, AT_LEAST_1] = 1
    "How often each prompt is answered; the speed is that of the median."
    clock: Literal["wall", "cpu"] = "wall"
    "cpu: this process's computing time, for one thread on a busy machine."
    engine: Literal["hf", "vllm", "hf,vllm"] = "hf"
    "`generate()`, the same modes in vLLM, or both."
    vllm_python: Path | None = None
    "The interpreter of an environment with vLLM and this package."
