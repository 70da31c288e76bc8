"""``lossy-assist dropout``: choose a model's dropout for dropmatch once, and store it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from ..acceptors import REGISTRY
from ..call.spelling import read_gamma
from ..mining.reading import read_text
from ..models.lm_head_hook import DROPOUTS, POSITIONS, choose_dropout
from .models import ModelOptions
from .options import Gamma, PromptFile

RULE = "dropmatch"


@dataclass(frozen=True, kw_only=True)
class DropoutOptions(ModelOptions):
    """The options of ``dropout``."""

    out: Annotated[Path, typer.Option(help="Folder for the generation configuration.")]
    assistant: str | None = None
    prompts: PromptFile = None
    count: Annotated[int, typer.Option(min=1, help="The most prompts.")] = 10
    num_paths: Annotated[int, typer.Option(min=1, help="K, the number of dropped heads.")] = REGISTRY[RULE].num_paths
    gamma: Gamma = "5"


def dropout(options: DropoutOptions) -> None:
    """Choose dropmatch's dropout for a model on several prompts, as a call does on its own prompt, and store it.

    OUT gets generation_config.json with rule, dropout and draft length, which `--mode OUT` and
    `GenerationConfig.from_pretrained(OUT)` read.
    """
    options.check(optional=("--assistant",))
    gamma, num_paths, out = read_gamma(options.gamma, "--gamma"), options.num_paths, options.out
    loaded, screen = options.load().asked("--prompts", options.prompts), Console()
    states = head_inputs(loaded.target, loaded.encode(loaded.examples(options.count)))
    head = loaded.target.get_output_embeddings()
    found, *each = (DROPOUTS[choose_dropout(head, own, num_paths)] for own in (torch.cat(states), *states))
    each.sort()
    settings = {"dropout": found, "num_paths": num_paths}
    GenerationConfig(lossy_mode=RULE, lossy_config=settings, num_assistant_tokens=gamma).save_pretrained(out)
    screen.print(f"dropout {found:g} over {len(each)} prompts; alone they have {each[0]:g} to {each[-1]:g}")
    screen.print(f"written: {out}", style="dim", soft_wrap=True)


def head_inputs(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return the LM head's inputs ``(n, d)`` at each prompt's last positions, as many as a call looks at."""
    return [read_text(model, ids).states[-POSITIONS:] for ids in prompts]
