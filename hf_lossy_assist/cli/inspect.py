"""``lossy-assist inspect``: a page with every token's status, in one mode or several."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ..errors import LossyValueError
from . import options
from .console import Console

if TYPE_CHECKING:
    from ..evaluation.modes import DecodingMode
    from ..inspection import InspectedText

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
    options.check_names(modes)
    lookup = decoding.prompt_lookup
    models.check({"PROMPT": prompt}, lookup=lookup)
    if not (os.path.isdir(file.parent) and os.access(file.parent, os.W_OK)) or file.is_dir():
        raise LossyValueError(f"`--out` has to be a file in a folder that can be written to, but is {str(file)!r}")
    if file.exists() and not overwrite:
        raise LossyValueError(
            f"`--out` has to be a new file, but {str(file)!r} is there; choose another, or add `--overwrite`"
        )
    from ..compat.models import device_of
    from ..core.statistics import TokenRecord
    from ..evaluation.requests import batches_of, run_request
    from ..inspection import InspectedText, InspectionPage

    example = options.shown(prompt, models.pair)
    models.check_heads(decoding.modes(modes, models, models.heads, GAMMA))  # before models are loaded
    pair = models.load(lookup, models.heads)
    longest = min(GAMMA, getattr(pair.draft, "longest", None) or GAMMA)  # a block is short
    named = decoding.modes(modes, models, pair.rule_heads, longest)
    for each in named:
        each.check_pair(pair)
    (batch,) = batches_of([pair.encode(example.prompt)], device=device_of(pair.target), seed=decoding.seed or 0)

    def text_of(mode: DecodingMode) -> InspectedText:
        inspected = mode if mode.rule is None else replace(mode, settings={**mode.settings, "inspect": True})
        seen = run_request(pair, inspected, batch, max_new_tokens)
        records = seen.stats.records if seen.stats else [TokenRecord(x, "target") for x in seen.rows[0].tolist()]
        figures = seen.stats.brief() if seen.stats else {}
        if example.answer:
            figures = {"answer": options.outcome(pair, example, seen.rows[0], max_new_tokens), **figures}
        return InspectedText(mode.label, records, figures)

    InspectionPage([*map(text_of, named)], pair.tokenizer, example.prompt).save(file)
    Console().print(f"written: {file}", style="dim", soft_wrap=True, markup=False, highlight=False)
