"""``lossy-assist inspect``: a page with every token's status, in one mode or several."""

from __future__ import annotations

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
    from ..evaluation.modes import modes_of
    from ..evaluation.requests import batches_of
    from ..evaluation.side_by_side import compare

    example = options.shown(prompt, models.pair)
    named = modes_of(modes, decoding.length(models, GAMMA), heads=models.heads, **decoding.law)
    for each in named:  # before models are loaded
        each.check_draft(model=models.has_draft(lookup), lookup=lookup is not None)
    pair = models.load(lookup, models.heads)
    longest = min(GAMMA, getattr(pair.draft, "longest", None) or GAMMA)  # a block is short
    named = modes_of(modes, decoding.length(models, longest), heads=pair.rule_heads, **decoding.law)
    for each in named:
        each.check_pair(pair)
    ids = pair.encode(example.prompt, turn=models.pair is not None)
    (batch,) = batches_of([ids], device=pair.target.device, seed=decoding.seed or 0)

    def right(tokens: list[int]) -> bool:
        return pair.task.correct(example, pair.tokenizer.decode(tokens, skip_special_tokens=True))

    judged = right if example.answer else None
    page = compare(pair, named, batch, max_new_tokens, prompt=example.prompt, right=judged)
    page.save(file)
    Console().print(f"written: {file}", style="dim", soft_wrap=True, markup=False, highlight=False)
