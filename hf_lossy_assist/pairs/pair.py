"""Loading a pair."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..drafting.dflash import DFlash
from ..drafting.eagle3 import Eagle3
from ..errors import LossyValueError
from ..heads import Head
from ..tasks import Arithmetic, Task
from ..values import check_name
from . import qwen_coder

NAMES: Mapping[str, type[Task] | None] = {"arithmetic": Arithmetic, "qwen-coder": None}
"""The pairs, each with the task that judges its answers, if it has one."""

ROLES = ("target", "draft")
_HEADS = ("judge", "judge-code", "verifier")
STATE_HEADS = {"eagle3": Eagle3, "dflash": DFlash}
"""Heads that draft from a target's states, by the name that a pair and its folder give them."""

BUNDLED = Path(__file__).parent / "arithmetic"
"""The folder of the models of ``"arithmetic"``."""


@dataclass(frozen=True, eq=False)
class Pair:
    """A target, a draft for it, and a task that tells right answers from wrong ones."""

    target: PreTrainedModel  # in evaluation mode
    draft: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase  # pads on the left, and begins a prompt with BOS or has a chat template
    task: Task | None  # None for a model of general use
    heads: Mapping[str, Head] = field(default_factory=dict)  # by name: ``"judge"``, ``"judge-code"``, ``"verifier"``
    eagle3: Eagle3 | None = None  # a head that drafts for the target, in the draft's place
    dflash: DFlash | None = None  # another one, which drafts a block at once

    @property
    def rule_heads(self) -> dict[str, Head]:
        """The heads by rule, as ``lossy_head`` takes them; of several for a rule, the first."""
        return {head.config.rule: head for head in reversed(self.heads.values())}


def load(
    name: str = "arithmetic",
    *,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    folder: str | Path | None = None,
) -> Pair:
    """Load a pair.

    ``"arithmetic"`` is part of the package. The models of ``"qwen-coder"`` come from the Hub. Where no Hub answers,
    they are those that ``make qwen-coder`` has put into the user's cache; its heads are part of the package.

    Parameters
    ----------
    name
        ``"arithmetic"`` or ``"qwen-coder"``.
    dtype
        float32 by default for ``"arithmetic"``, and bfloat16 for ``"qwen-coder"``, as its weights are stored. In
        bfloat16, unlike in float32, near ties can make lossless decoding differ from plain ``generate()``.
    device
        The device of both models; the CPU by default.
    folder
        A folder with ``target`` and ``draft`` instead of the pair's own, and with the heads for them, if any.

    Raises
    ------
    LossyValueError
        If there is no such pair, or its weights are missing or damaged. The message says how to get them.

    Examples
    --------
    >>> from hf_lossy_assist import pairs
    >>> pair = pairs.load("arithmetic")
    >>> pair.task.name, sorted(pair.heads)
    ('arithmetic', ['judge', 'verifier'])
    """
    task = task_of(name)
    folder = None if folder is None else Path(folder)
    root = BUNDLED if folder is None else folder
    ours = folder is None and name == "qwen-coder"
    sources = qwen_coder.folders() if ours else [root / role for role in ROLES]
    places = {x: hub_cards() / f"{name}-{x}" if folder is None else folder / x for x in (*_HEADS, *STATE_HEADS)}
    dtype = dtype or (torch.bfloat16 if name == "qwen-coder" else torch.float32)
    target, draft = (load_model(source, dtype=dtype, device=device) for source in sources)
    heads = {x: Head.from_pretrained(places[x]) for x in _HEADS if places[x].is_dir()}
    drafting = {
        x: kind.from_pretrained(places[x], dtype=target.dtype) for x, kind in STATE_HEADS.items() if places[x].is_dir()
    }
    return Pair(
        target=target,
        draft=draft,
        tokenizer=AutoTokenizer.from_pretrained(sources[0], padding_side="left"),
        task=task,
        heads={x: head.to(target.device) for x, head in heads.items()},
        **{x: head.to(target.device) for x, head in drafting.items()},
    )


def at_hand(name: str) -> bool:
    """Return whether a pair can be loaded without a download.

    Examples
    --------
    >>> at_hand("arithmetic")
    True
    """
    task_of(name)
    return name != "qwen-coder" or qwen_coder.at_hand()


def load_model(
    folder: Path, *, dtype: torch.dtype | str = torch.float32, device: torch.device | str | None = None
) -> PreTrainedModel:
    if not (folder / "model.safetensors").is_file():
        raise LossyValueError(
            f"`folder` has to hold 'target' and 'draft', each with a model.safetensors, but {str(folder)!r} has none; "
            "make them with `python -m benchmarks.train_pair train-pair`"
        )
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return model.to(device if device is not None else "cpu").eval()


def task_of(name: str) -> Task | None:
    """Return a pair's task, or None if it has none."""
    check_name("name", name, NAMES)
    task = NAMES[name]
    return None if task is None else task()


def hub_cards() -> Path:
    """Return the folder of what stands on the Hub: inside an installed package, and beside it in a checkout.

    Examples
    --------
    >>> (hub_cards() / "arithmetic-judge" / "model.safetensors").is_file()
    True
    """
    package = Path(__file__).parents[1]
    inside = package / "hub_cards"
    return inside if inside.is_dir() else package.parent / "hub_cards"
