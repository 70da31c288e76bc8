"""``lossy-assist inspect``: a page with every token's status, in one mode or several."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ..errors import LossyValueError
from ..evaluation.modes import parse_modes
from ..evaluation.requests import batches_of
from ..evaluation.side_by_side import compare
from .console import Console
from .models import DecodingOptions
from .options import Gamma, MaxNewTokens, Modes


@dataclass(frozen=True, kw_only=True)
class InspectOptions(DecodingOptions):
    """The options of ``inspect``."""

    out: Annotated[Path, typer.Option(metavar="FILE", help="The HTML file to write.")]
    modes: Modes = "lossless"
    gamma: Gamma = "8"
    max_new_tokens: MaxNewTokens = 160


def inspect(
    prompt: Annotated[
        str | None, typer.Argument(help="The text to continue. With --pair: a test problem by default.")
    ] = None,
    *,
    options: InspectOptions,
) -> None:
    """Write a page of the text with every token's status: kept, kept only by a lossy rule, corrected, or unverified.

    Point at a token, or reach it by the Tab key, to see its probabilities under target and draft, the target's
    likeliest tokens, and the values that the rule compared. The page works offline.
    """
    out, pair = options.out, options.pair
    if not out.parent.is_dir():
        raise LossyValueError(f"`--out` has to be a file in an existing folder, but is {str(out)!r}")
    options.check({"PROMPT": prompt} if pair is None else None)
    modes = parse_modes(options.modes, options.drafted, options.warmth)
    loaded = options.load().with_heads(options.head)
    for each in modes:
        each.check_heads(loaded.heads)
    example = loaded.shown if prompt is None else None
    text = prompt if example is None else example.prompt
    ids = loaded.read(text, as_question=pair is not None)
    (batch,) = batches_of([ids], device=loaded.target.device, seed=options.seed or 0)
    right = None if example is None or loaded.task is None else partial(loaded.right, example)
    page = compare(loaded.models, loaded.tokenizer, modes, batch, options.max_new_tokens, prompt=text, right=right)
    page.save(out)
    Console().print(f"written: {out}", style="dim", soft_wrap=True, markup=False, highlight=False)
