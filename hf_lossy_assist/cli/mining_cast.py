"""What the options of ``lossy-assist mine`` name: models, tokenizer, task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from .. import pairs, tasks
from ..errors import LossyValueError
from ..mining.mining_run import this_process
from ..mining.reading import check
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

    def check(self, *, needs_target: bool) -> None:
        """Refuse what does not go together, before anything is loaded."""
        named = {"--task": self.task, "--assistant": self.assistant, "--model": self.model}
        given = [name for name, value in named.items() if value is not None]
        if self.pair is not None and given:
            raise LossyValueError(
                f"`--pair` {self.pair!r} brings its own models and task; leave out {', '.join(given)}"
            )
        missing = [name for name in named if name not in given and (needs_target or name != "--model")]
        if self.pair is None and missing:
            raise LossyValueError(f"`{'` and `'.join(missing)}` has to be given, or `--pair arithmetic` instead of all")


@dataclass(frozen=True, eq=False)
class Cast:
    """Who takes part.

    Attributes
    ----------
    target
        None where it is behind an API only.
    draft, tokenizer
        The tokenizer is that of both models.
    task
        Where prompts come from, and what an answer is.
    """

    target: PreTrainedModel | None
    draft: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    task: Task

    @property
    def models(self) -> dict[str, PreTrainedModel]:
        """The models that are here, by their roles."""
        return {"draft": self.draft} if self.target is None else {"target": self.target, "draft": self.draft}


def load_cast(options: CastOptions) -> Cast:
    """Load what the options name.

    Raises
    ------
    LossyValueError
        When something can't be loaded, or the models don't belong together.
    LossyUnsupportedError
        When a model's cache can't be cut back.
    """
    cast = _bundled(options) if options.pair is not None else _named(options)
    for model in cast.models.values():
        check(model)
    sizes = {role: model.config.get_text_config(decoder=True).vocab_size for role, model in cast.models.items()}
    if min(sizes.values()) < len(cast.tokenizer):
        raise LossyValueError(
            f"`--assistant` has to share the target's tokenizer, but that has {len(cast.tokenizer)} tokens, and the "
            f"models have {sizes}"
        )
    return cast


def _bundled(options: CastOptions) -> Cast:
    dtype = getattr(torch, options.dtype or "float32", "auto")
    device = options.device or default_device()
    pair = pairs.load(options.pair, dtype=dtype, device=None if device == "auto" else device)
    return Cast(pair.target, pair.draft, pair.tokenizer, pair.task)


def _named(options: CastOptions) -> Cast:
    task = tasks.load(options.task, options.task_data, **parse_options(options.task_option))
    target = None if options.model is None else _model("--model", options.model, options)
    draft = _model("--assistant", options.assistant, options)
    tokenizer = pretrained("--model", options.model or options.assistant, AutoTokenizer)
    return Cast(target, draft, tokenizer, task)


def parse_options(items: Sequence[str]) -> dict[str, str]:
    """Read ``K=V`` settings of a task.

    Examples
    --------
    >>> parse_options(["votes=3", "url=http://localhost?a=b"])
    {'votes': '3', 'url': 'http://localhost?a=b'}
    """
    parsed = {}
    for item in items:
        key, separator, value = item.partition("=")
        if not (key and separator):
            raise LossyValueError(f"`--task-option` has to be KEY=VALUE, but is {item!r}")
        parsed[key] = value
    return parsed


def default_device() -> str:
    """Return this process's GPU if there is one, else the CPU."""
    return f"cuda:{this_process().local}" if torch.cuda.is_available() else "cpu"


def _model(option: str, source: str, options: CastOptions) -> PreTrainedModel:
    device = options.device or default_device()
    where: dict[str, Any] = {"device_map": "auto"} if device == "auto" else {}
    model = pretrained(option, source, AutoModelForCausalLM, dtype=options.dtype or "auto", **where)
    return model.eval() if where else model.to(device).eval()
