"""Loading a pair."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..errors import LossyValueError
from ..heads import Head
from ..heads.head_loading import HEADS
from ..tasks import Arithmetic, Programs, Task
from . import smollm2

NAMES: Mapping[str, type[Task] | None] = {"arithmetic": Arithmetic, "programs": Programs, "smollm2": None}
"""The pairs, each with the task that judges its answers, if there is one."""

ROLES = ("target", "draft")


@dataclass(frozen=True, eq=False)
class Pair:
    """A target, a draft for it, and a task that tells right answers from wrong ones.

    Attributes
    ----------
    target, draft
        Models with one tokenizer, in evaluation mode; the draft is None where none has been trained.
    tokenizer
        Pads on the left, and begins a prompt with BOS or has a chat template.
    task
        Prompts, and what "the same answer" means; None for a model that answers anything.
    heads
        Trained heads by name: ``"judge"`` and ``"verifier"``, where the pair has them.
    """

    target: PreTrainedModel
    draft: PreTrainedModel | None
    tokenizer: PreTrainedTokenizerBase
    task: Task | None
    heads: Mapping[str, Head] = field(default_factory=dict)

    @property
    def rule_heads(self) -> dict[str, Head]:
        """The heads by the rule that uses them, as ``lossy_head`` takes them."""
        return {head.config.rule: head for head in self.heads.values()}


def load(
    name: str = "arithmetic",
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    folder: str | Path | None = None,
) -> Pair:
    """Load a pair: ``"arithmetic"`` or ``"programs"``, or ``"smollm2"``, whose target the extra ``smollm2`` brings.

    Nothing is downloaded. The first load of ``"smollm2"`` converts its weights into the user's cache.

    Parameters
    ----------
    name
        The pair's name.
    dtype
        The weights are stored in bfloat16, where near ties make even lossless decoding differ from plain
        ``generate()``; float32 has none of that.
    device
        Where to put both models; the CPU by default.
    folder
        A folder with ``target`` and ``draft``, as ``lossy-assist train-pair`` writes it; else the pair's own weights.
        Of ``"smollm2"``, a folder with ``draft``.

    Examples
    --------
    >>> from hf_lossy_assist import pairs
    >>> pair = pairs.load("arithmetic")
    >>> pair.task.name
    'arithmetic'
    """
    task = task_of(name)
    if name == "smollm2":
        target = smollm2.target_folder()
        draft = smollm2.DRAFT if folder is None else Path(folder) / "draft"
        return Pair(
            target=load_model(target, dtype=dtype, device=device),
            draft=load_model(draft, dtype=dtype, device=device) if folder is not None or draft.is_dir() else None,
            tokenizer=AutoTokenizer.from_pretrained(target),
            task=None,
        )
    root = bundled_folder(name) if folder is None else Path(folder)
    heads = {name: kind for name, kind in HEADS.items() if (root / name).is_dir()}
    return Pair(
        target=load_model(root / "target", dtype=dtype, device=device),
        draft=load_model(root / "draft", dtype=dtype, device=device),
        tokenizer=AutoTokenizer.from_pretrained(root / "target"),
        task=task,
        heads={name: kind.from_pretrained(root / name).to(device or "cpu") for name, kind in heads.items()},
    )


def load_model(
    folder: Path, *, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None
) -> PreTrainedModel:
    """Load one model of a pair from its folder, in evaluation mode."""
    if not (folder / "model.safetensors").is_file():
        raise LossyValueError(
            f"`folder` has to hold 'target' and 'draft', each with a model.safetensors, but {str(folder)!r} has none; "
            "make them with `lossy-assist train-pair`"
        )
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return model.to(device if device is not None else "cpu").eval()


def task_of(name: str) -> Task | None:
    """Return the task of a pair, if it has one."""
    if name not in NAMES:
        from ..config import nearest

        raise LossyValueError(f"`name` has to be one of {list(NAMES)}, but is {name!r}{nearest(name, NAMES)}")
    task = NAMES[name]
    return None if task is None else task()


def bundled_folder(name: str) -> Path:
    """Return where the package keeps a pair's weights."""
    return Path(__file__).parent / name
