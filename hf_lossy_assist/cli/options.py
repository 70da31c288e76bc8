"""The options that commands share: a frozen dataclass a group, with each option documented where it stands."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from ..errors import LossyValueError
from ..generation.spelling import FORM, OWN_RULE, LossyMode, Spelling, split
from ..store.folder import this_process
from ..tasks import SHIPPED, Example, Task, load
from ..tasks.prompts import Prompts as OwnPrompts
from ..values import check_name
from .console import limit_threads

if TYPE_CHECKING:
    from torch import Tensor

    from ..evaluation.modes import DecodingMode
    from ..heads import Head
    from ..pairs import Pair

MODELS, PROMPTS, DECODING, MEASURING, OUTPUT = map(
    Group.create_ordered, ("Models", "Prompts", "Decoding", "Measuring", "Output")
)
_SETTING = re.compile(r":(?=\w+=)")  # begins a task's setting
OPENINGS = Path(__file__).parent / "openings.txt"
"""Prompts for models without a task."""
_SHOWN = 18  # the bundled pair answers this problem right by its usual rules, and `dropmatch` in few rounds


AT_LEAST_0 = Parameter(validator=Number(gte=0))
AT_LEAST_1 = Parameter(validator=Number(gte=1))


def check_names(modes: str, others: Sequence[str] = ("plain", "draft", "stock", "everything", "all")) -> None:
    """Refuse modes of unknown rules before torch is imported, which takes seconds; ``others`` are taken, too."""
    for part in split(modes, ","):
        if not os.path.exists(part.strip()) and not OWN_RULE.search(part):
            for name in Spelling.read(part, "modes").names:
                if name not in ("plain", "draft", "stock"):  # an error of its own says what to take in their place
                    check_name("modes", name, [*others, *get_args(LossyMode)])


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
        "`lossy-assist rules` lists the rules, and `lossy-assist rules NAME` a rule's settings; package.module:Rule is "
        "your own.",
    ),
]
Prompt = Annotated[
    str | None,
    Parameter(
        help="The text to continue; a user's turn, if there is a chat template. With --pair: a test problem by default."
    ),
]


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
    prepack: bool = False
    "Order bfloat16 or float32 weights for this CPU's kernels, once."
    threads: Annotated[int | None, AT_LEAST_1] = None
    "CPU threads; torch's choice by default."

    draft_dtype: ClassVar[Any] = None

    def load(self, prompt_lookup: int | None = None, heads: Mapping[str, Any] | None = None) -> Pair:
        """Load them, with heads by rule."""
        import torch
        from transformers.utils.logging import disable_progress_bar

        from ..pairs import Pair

        disable_progress_bar()
        limit_threads(self.threads)
        usual = f"cuda:{this_process().local}" if torch.cuda.is_available() else "cpu"
        return Pair.load(
            self.pair, model=self.model, assistant=self.assistant, dtype=self.dtype, device=self.device or usual,
            prepack=self.prepack, draft_dtype=self.draft_dtype, heads=heads,
            prompt_lookup=prompt_lookup,
        )  # fmt: skip

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
        if self.draft_dtype is not None and (self.assistant == "mtp" or not self.has_draft(lookup)):
            raise LossyValueError(f"`--draft-dtype` {self.draft_dtype} needs a draft model; add `--assistant`")
        if self.model and self.assistant and os.path.realpath(self.model) == os.path.realpath(self.assistant):
            raise LossyValueError(f"`--assistant` has to be another model than `--model`, but both are {self.model!r}")
        missing = [f"`{name}`" for name, value in named.items() if value is None and name not in optional]
        if self.pair is None and missing:
            *others, last = missing
            names = f"{', '.join(others)} and {last} have" if others else f"{last} has"
            raise LossyValueError(f"{names} to be given, or `--pair arithmetic` instead")


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

    @cached_property
    def heads(self) -> dict[str, Head]:
        return read_heads(self.head)

    def check_heads(self, modes: Iterable[DecodingMode], option: str = "--modes") -> None:
        """Refuse a head that no mode uses; a certificate brings its own."""
        using = {rule for mode in modes if "certificate" not in mode.settings for rule in mode.rules}
        if unused := self.heads.keys() - using:
            raise LossyValueError(
                f"`--head` is for the rule {min(unused)!r}, of which `{option}` needs none; leave it out"
            )


def read_heads(items: Sequence[str]) -> dict[str, Head]:
    """Load the heads of ``--head SOURCE`` and ``--head RULE=SOURCE``, by rule."""
    from ..acceptors import REGISTRY, head_type, place_rule_head
    from ..heads import Head
    from ..heads.head import load_head

    heads: dict[str, Head] = {}
    for item in items:
        name, equals, source = item.partition("=")
        if equals and name.isidentifier():
            check_name("RULE` of `--head", name, [x for x in REGISTRY if head_type(REGISTRY[x]) is not None])
            head = place_rule_head(REGISTRY[name], source, "cpu")
        else:
            head = load_head(Head, item)
        if head.config.rule in heads:
            raise LossyValueError(f"`--head` has to name one head for the rule {head.config.rule!r}, but names several")
        heads[head.config.rule] = head
    return heads


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
    "A file for the task to read; without --task, a prompt a line, or JSONL with `prompt` and perhaps `answer`."
    split: str | None = None
    "The task's split; test by default, and for `mine` its first."

    @cached_property
    def loaded(self) -> Task | None:
        """The task, or the file's prompts, if either is named."""
        if self.task is None:
            return None if self.data is None else OwnPrompts(self.data)
        parts = [*_SETTING.split(f"task={self.task}"), *([] if self.data is None else [f"data={self.data}"])]
        settings = dict(part.split("=", 1) for part in parts)  # as they are written: the task says which are texts
        if len(settings) < len(parts):
            raise LossyValueError(f"`--task` has to set each key once, `--data` included, but has {', '.join(parts)}")
        return load(**settings)

    def chosen_split(self, default: str | None = "test") -> str | None:
        return self.split or default

    def of(self, pair: str | None, split: str | None = "test") -> Task:
        """Return what is asked: a pair's own task by default, else openings of stories. Refuse what can't be read."""
        own = None
        if self.loaded is None and pair is not None:
            from ..pairs import task_of

            own = task_of(pair)
        task = self.loaded or own or OwnPrompts(str(OPENINGS))
        task.examples(self.chosen_split(split) or task.splits[0], 1)
        return task


def shown(prompt: str | None, pair: str | None) -> Example:
    """Return a prompt without an answer, or without a prompt one of a pair's."""
    if prompt is not None:
        return Example(prompt, "")
    task = Prompts().of(pair)
    at = _SHOWN if task.scored else 0
    return task.examples("test", at + 1)[at]


def outcome(pair: Pair, example: Example, tokens: Tensor, longest: int) -> str:
    """Say in a word or two what an answer is, given its tokens and how many it may have."""
    text = pair.tokenizer.decode(tokens, skip_special_tokens=True)
    if pair.task.correct(example, text):
        return "right"
    return "cut off" if pair.is_cut(tokens, text, longest) else "wrong"


@Parameter(name="*", group=DECODING)
@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn."""

    sample: bool = False
    "Draw tokens instead of taking the likeliest."
    temperature: Annotated[float | None, Parameter(validator=Number(gt=0, lt=inf))] = None
    "The temperature of --sample; 0.9 by default, for `mine` 1, for `generate` the model's own."
    seed: Annotated[int | None, AT_LEAST_0] = None
    "The seed of all draws; each further prompt adds one."

    top_p: ClassVar[Any] = None

    @property
    def law(self) -> dict[str, Any]:
        """How tokens are drawn, by the names of the Python API."""
        return {"temperature": (self.temperature or 0.9) if self.sample else None, "top_p": self.top_p or 1.0}

    def check(self) -> None:
        """Refuse settings of draws where nothing is drawn."""
        for name, value in (("temperature", self.temperature), ("top-p", self.top_p)):
            if value is not None and not self.sample:
                raise LossyValueError(f"`--{name}` {value} needs `--sample`; add it, or leave it out")


@dataclass(frozen=True)
class Drafting(Sampling):
    """How tokens are drafted and drawn."""

    top_p: Annotated[float | None, Parameter(validator=Number(gt=0, lte=1))] = None
    "With --sample: draw from the likeliest tokens that have this probability together."
    gamma: Annotated[int | Literal["auto"] | None, Parameter(validator=Number(gte=0, lt=10**18))] = None
    "Drafted tokens a round where a mode does not say, or auto; by default 5, for `inspect` 8, for `generate` auto."
    prompt_lookup: Annotated[int | None, AT_LEAST_1] = None
    "Draft up to so many tokens from the text before, where it repeats itself: ahead of an --assistant, or without one."

    def length(self, models: Models, usual: int = 5) -> int | str:
        """Return the drafted tokens a round, where a mode does not say."""
        alone = None if models.has_draft(self.prompt_lookup) else self.prompt_lookup
        if None not in (alone, self.gamma):
            raise LossyValueError(f"`--gamma` {self.gamma} is for a draft model, but only `--prompt-lookup` drafts")
        return next(x for x in (alone, self.gamma, usual) if x is not None)

    def modes(self, text: str, models: Models, heads: Mapping[str, Head], usual: int = 5) -> list[DecodingMode]:
        """Read modes; refuse those without a drafter, before models are loaded."""
        from ..evaluation.modes import modes_of

        found = modes_of(text, self.length(models, usual), heads=heads, **self.law)
        for mode in found:
            mode.check_draft(model=models.has_draft(self.prompt_lookup), lookup=self.prompt_lookup is not None)
        return found


@Parameter(name="*", group=MEASURING)
@dataclass(frozen=True)
class Measuring:
    """With what modes are compared, and in which engine."""

    reference: str | None = None
    "The mode to compare with; plain, else lossless by default."
    engine: Literal["hf", "vllm", "hf,vllm"] = "hf"
    "`generate()`, the same modes in vLLM, or both."
    vllm_python: Path | None = None
    "The interpreter of an environment with vLLM and this package."
