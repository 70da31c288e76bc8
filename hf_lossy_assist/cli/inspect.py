"""``lossy-assist inspect``: a page with every token's status, in one mode or several."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ..errors import LossyValueError
from . import options
from .console import Console

GAMMA = 8


def inspect(
    prompt: options.Prompt = None,
    /,
    *,
    models: options.ModelsWithHeads = options.ModelsWithHeads(),
    modes: options.Modes = "lossless,min_p",
    max_new_tokens: options.Longest = 160,
    decoding: options.Drafting = options.Drafting(),
    file: Annotated[Path, Parameter(name="--out", group=options.OUTPUT, help="The HTML file to write.")],
    overwrite: Annotated[
        bool, Parameter(group=options.OUTPUT, help="Write the file although it is there already.")
    ] = False,
) -> None:
    """Write a page of the text with every token's status: kept, kept only by a lossy rule, corrected, or unverified.

    Point at a token, or reach it by the Tab key, to see its probabilities under
    target and draft, the target's likeliest tokens, and the values that the
    rule compared. The page works offline.
    """
    decoding.check()
    lookup = decoding.prompt_lookup
    models.check({"PROMPT": prompt}, lookup=lookup)
    if not file.parent.is_dir() or file.is_dir():
        raise LossyValueError(f"`--out` has to be a file in an existing folder, but is {str(file)!r}")
    if file.exists() and not overwrite:
        raise LossyValueError(
            f"`--out` has to be a new file, but {str(file)!r} is there; choose another, or add `--overwrite`"
        )
    from ..evaluation.requests import batches_of
    from ..evaluation.side_by_side import compare
    from .models import Setup

    setup = Setup(models, decoding, usual_gamma=GAMMA)
    named = setup.modes(modes, setup.heads)
    for each in named:  # before models are loaded
        each.check_draft(model=setup.has_draft, lookup=lookup is not None)
    loaded = setup.load()
    ready = replace(loaded.models, lookup=lookup or 0)
    longest = getattr(ready.draft, "longest", None)
    if decoding.gamma is None and longest is not None and longest < GAMMA:  # a block is short
        named = replace(setup, usual_gamma=longest).modes(modes, loaded.heads)
    for each in named:
        each.check_models(ready)
    example = loaded.shown if prompt is None else None
    text = prompt if example is None else example.prompt
    (batch,) = batches_of(
        [loaded.read(text, as_question=models.pair is not None)], device=loaded.target.device, seed=setup.seed
    )
    right = partial(loaded.right, example) if example is not None and example.answer else None
    page = compare(ready, loaded.tokenizer, named, batch, max_new_tokens, prompt=text, right=right)
    page.save(file)
    Console().print(f"written: {file}", style="dim", soft_wrap=True, markup=False, highlight=False)
