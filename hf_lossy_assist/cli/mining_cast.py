"""What the options of ``lossy-assist mine`` name: models, tokenizer, task."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from .. import pairs, tasks
from ..errors import LossyValueError
from ..tasks import Task
from .options import pretrained


@dataclass(frozen=True)
class CastOptions:
    """The options as they were given; see the command's help."""

    pair: str | None
    task: str | None
    task_data: str | None
    task_option: Sequence[str]
    model: str | None
    assistant: str | None
    dtype: str | None
    device: str | None

    def check(self) -> None:
        """Refuse what does not go together, before anything is loaded."""
        named = {"--task": self.task, "--model": self.model, "--assistant": self.assistant}
        given = [name for name, value in named.items() if value is not None]
        if self.pair is not None and given:
            raise LossyValueError(
                f"`--pair` {self.pair!r} brings its own models and task; leave out {', '.join(given)}"
            )
        if self.pair is None and len(given) < len(named):
            missing = [name for name in named if name not in given]
            raise LossyValueError(
                f"{', '.join(missing)} has to be given, or `--pair arithmetic` instead of all of them"
            )


@dataclass(frozen=True, eq=False)
class Cast:
    """Who takes part.

    Attributes
    ----------
    target, draft, tokenizer
        The models, and the tokenizer of both.
    task
        Where prompts come from, and what an answer is.
    """

    target: PreTrainedModel
    draft: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    task: Task


def load_cast(options: CastOptions) -> Cast:
    """Load what the options name."""
    options.check()
    device = options.device or default_device()
    if options.pair is not None:
        dtype = getattr(torch, options.dtype or "float32", "auto")
        loaded = pairs.load(options.pair, dtype=dtype, device=None if device == "auto" else device)
        return Cast(loaded.target, loaded.draft, loaded.tokenizer, loaded.task)
    task = tasks.load(options.task, options.task_data, **parse_options(options.task_option))
    target = _model("--model", options.model, options, device)
    draft = _model("--assistant", options.assistant, options, device)
    if target.config.get_text_config().vocab_size != draft.config.get_text_config().vocab_size:
        raise LossyValueError("`--assistant` has to have the target's tokenizer, but its vocabulary has another size")
    return Cast(target, draft, pretrained("--model", options.model, AutoTokenizer), task)


def parse_options(items: Sequence[str]) -> dict[str, str]:
    """Read ``K=V`` settings of a task."""
    pairs_ = [item.partition("=") for item in items]
    for item, (key, separator, _) in zip(items, pairs_, strict=True):
        if not (key and separator):
            raise LossyValueError(f"`--task-option` has to be KEY=VALUE, but is {item!r}")
    return {key: value for key, _, value in pairs_}


def default_device() -> str:
    """Return this process's GPU if there is one, else the CPU."""
    return f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"


def _model(option: str, source: str, options: CastOptions, device: str) -> PreTrainedModel:
    where: dict[str, Any] = {"device_map": "auto"} if device == "auto" else {}
    model = pretrained(option, source, AutoModelForCausalLM, dtype=options.dtype or "auto", **where)
    return model.eval() if where else model.to(device).eval()
