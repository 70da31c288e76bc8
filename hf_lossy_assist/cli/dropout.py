"""``lossy-assist dropout``: the dropout that suits a model, found once and stored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from ..acceptors import REGISTRY
from ..mining.states import read_text
from ..verification.lm_head_hook import DROPOUTS, POSITIONS, choose_dropout
from .console import limit_threads
from .models import ModelOptions
from .options import Dtype, Gamma, PairInstead, PromptFile, TargetSource, Threads, Where

RULE = "dropmatch"


def dropout(
    out: Annotated[Path, typer.Option(help="Folder for the generation configuration.")],
    model: TargetSource = None,
    pair: PairInstead = None,
    prompts: PromptFile = None,
    count: Annotated[int, typer.Option(min=1, help="How many prompts at most.")] = 10,
    num_paths: Annotated[int, typer.Option(min=1, help="K, the number of dropped heads.")] = REGISTRY[RULE].num_paths,
    gamma: Gamma = 5,
    dtype: Dtype = None,
    device: Where = None,
    threads: Threads = None,
) -> None:
    """Find dropmatch's dropout for a model on several prompts, as each call finds it on its own, and store it.

    OUT gets generation_config.json with rule, dropout and draft length, which `--config OUT` and
    `GenerationConfig.from_pretrained(OUT)` read.
    """
    limit_threads(threads)
    options = ModelOptions(pair, model, None, dtype, device)
    options.check(optional=("--assistant",))
    loaded, screen = options.load(assisted=False).asked("--prompts", prompts), Console()
    states = head_inputs(loaded.target, loaded.encode(loaded.examples(count)))
    head = loaded.target.get_output_embeddings()
    found, *each = (DROPOUTS[choose_dropout(head, own, num_paths)] for own in (torch.cat(states), *states))
    each.sort()
    settings = {"dropout": found, "num_paths": num_paths}
    GenerationConfig(lossy_mode=RULE, lossy_config=settings, num_assistant_tokens=gamma).save_pretrained(out)
    screen.print(f"dropout {found:g} over {len(each)} prompts; alone they have {each[0]:g} to {each[-1]:g}")
    screen.print(f"written: {out}", style="dim", soft_wrap=True)


def head_inputs(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return what enters the LM head at each prompt's last positions, as many as a call looks at: ``(n, d)`` each."""
    return [read_text(model, ids).states[-POSITIONS:] for ids in prompts]
