"""Models, prompts and ways to decode, as a command's options and ``--set`` name them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from .. import pairs, tasks
from ..errors import LossyValueError
from ..evaluation.modes import DecodingMode, modes_of
from ..generation.spelling import read_gamma
from ..heads import Head
from ..integrations.vllm.engines import VllmEngines, vllm_engines, vllm_has
from ..tasks import Task
from ..values import BOOL, COUNT, ONE_OR_MORE, Rule, is_number
from .models import LoadedModels, ModelOptions, read_heads

LOADING = {
    "device": "cpu, cuda:0, …, or auto to spread the models; a GPU if there is one",
    "folder": "a folder with the pair's `target` and `draft`",
    "prepack": "true orders bfloat16 or float32 weights for this CPU's kernels, once",
    "threads": "CPU threads; torch's choice by default",
}
SAMPLING = {
    "temperature": "of --sample, 0.9 by default",
    "top_p": "of --sample: draw from the likeliest tokens that have this probability together",
}
CHOOSING = {
    "split": "the task's split, test by default",
    "task.KEY": "a setting of the task, such as task.shots=8",
    "seed": "of the first prompt; each further prompt adds one",
    **SAMPLING,
}
DRAFTING = {
    "gamma": "drafted tokens a round where a mode does not say, or auto; 5 by default",
    "prompt_lookup": "look up to so many tokens up in the text, before an --assistant drafts, or without a model",
    "vllm_python": "the interpreter of an environment with vLLM and this package",
    "reference": "the mode to compare with; plain, else lossless by default",
}
LONGEST = "the longest response; the task's by default"

_TEXT = Rule("a text", lambda x: isinstance(x, str))
_RULES = {
    **dict.fromkeys(("assistant_tokenizer", "device", "folder", "reference", "split", "vllm_python"), _TEXT),
    "dtype": Rule("auto, float32, bfloat16 or float16", lambda x: x in ("auto", "float32", "bfloat16", "float16")),
    "prepack": Rule("true or false", BOOL.holds),
    "prompt_lookup": ONE_OR_MORE,
    "seed": COUNT,
    "temperature": Rule("a number > 0", lambda x: is_number(x) and x > 0),
    "threads": ONE_OR_MORE,
    "top_p": Rule("a number > 0 and <= 1", lambda x: is_number(x) and 0 < x <= 1),
}


@dataclass(frozen=True)
class Setup:
    """Models, prompts and ways to decode, as the options of a command name them."""

    models: ModelOptions
    head: Sequence[str] | None = None
    task: str | None = None
    data: str | None = None
    sample: bool = False
    engine: str = "hf"
    split: str | None = "test"  # None for the task's first
    settings: Mapping[str, Any] = field(default_factory=dict)  # of ``--set``

    @classmethod
    def of(
        cls, pair: str | None, model: str | None, assistant: str | None, dtype: Any, draft_dtype: Any,
        settings: Mapping[str, Any], **others: Any,
    ) -> Setup:  # fmt: skip
        """Put options together, and refuse those that conflict before anything is loaded."""
        for key in _RULES.keys() & settings.keys():
            _RULES[key].check(key, settings[key])
        of_models = (*LOADING, "prompt_lookup", "assistant_tokenizer")
        loading = {key: value for key, value in settings.items() if key in of_models}
        options = ModelOptions(pair, model, assistant, dtype, draft_dtype=draft_dtype, **loading)
        split = settings.get("split", settings.get("task.split", "test"))
        setup = cls(options, settings=settings, **{"split": split, **others})
        for key in ("temperature", "top_p"):
            if key in settings and not setup.sample:
                raise LossyValueError(f"`{key}` {settings[key]} needs `--sample`; add it, or leave it out")
        if setup.engine not in ("hf", "vllm", "hf,vllm"):
            raise LossyValueError(f"`--engine` has to be hf, vllm or hf,vllm, but is {setup.engine!r}")
        return setup

    @property
    def temperature(self) -> float | None:
        return self.settings.get("temperature", 0.9) if self.sample else None

    @property
    def top_p(self) -> float:
        return self.settings.get("top_p", 1.0)

    @property
    def seed(self) -> int:
        return self.settings.get("seed", 0)

    @property
    def gamma(self) -> int | str:
        alone = {} if self.models.has_draft else self.settings
        gamma = alone.get("prompt_lookup", self.settings.get("gamma", 5))
        return read_gamma(str(gamma), "gamma")

    @cached_property
    def vllm(self) -> VllmEngines | None:
        """What decodes in the place of this process, or beside it."""
        python = self.settings.get("vllm_python")
        return vllm_engines("vllm" in self.engine, python and Path(python), self.models.threads)

    @cached_property
    def heads(self) -> dict[str, Head]:
        return read_heads(self.head)

    def modes(self, text: str, heads: Mapping[str, Head]) -> list[DecodingMode]:
        """Read modes, in the engines that are to run them."""
        modes = modes_of(text, self.gamma, self.temperature, self.top_p, heads)
        if self.engine == "hf":
            return modes
        if self.engine == "vllm":
            return self.vllm.modes(modes)
        return [*modes, *self.vllm.modes(filter(vllm_has, modes))]

    @property
    def task_settings(self) -> dict[str, Any]:
        return {key.removeprefix("task."): x for key, x in self.settings.items() if key.startswith("task.")}

    @cached_property
    def prompts(self) -> Task | None:
        """The prompts that are named: of a task, of a file without right answers, or of the pair."""
        options = self.task_settings
        if self.task is not None:
            return tasks.load(self.task, self.data, **options)
        if self.data is not None:
            return tasks.load("prompts", self.data, **{"split": self.split, **options})
        if options:
            raise LossyValueError(f"`--set` has settings {sorted(options)} of a task, but there is no `--task`")
        return None if self.models.pair is None else pairs.task_of(self.models.pair)

    def load(self, needed: Mapping[str, Any] | None = None, optional: Collection[str] = ()) -> LoadedModels:
        """Load the models; options that conflict, and prompts that can't be read, are refused before."""
        self.models.check(needed, optional)
        heads, prompts = self.heads, self.prompts
        if prompts is not None:
            prompts.examples(self.split or prompts.splits[0], 1)
        loaded = self.models.load(prompts)
        return replace(loaded, heads={**loaded.heads, **heads})

    @property
    def is_scored(self) -> bool:
        """Whether the prompts have a task's score: a named task's, or that of a pair."""
        return self.task is not None or (self.data is None and self.prompts is not None)
