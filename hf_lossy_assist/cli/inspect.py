"""``lossy-assist inspect``: a page with every token's status, in one mode or several."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

from ..errors import LossyValueError
from ..evaluation.requests import batches_of
from ..evaluation.side_by_side import compare
from . import options
from .console import Console
from .setup import DRAFTING, LOADING, SAMPLING, Setup

GAMMA = 8
SETTINGS = LOADING | {
    "gamma": f"drafted tokens a round where a mode does not say, or auto; {GAMMA} by default",
    "prompt_lookup": DRAFTING["prompt_lookup"],
    "seed": "of the draws; 0 by default",
    **SAMPLING,
}


def inspect(
    prompt: options.PromptText = None,
    *,
    pair: options.PairName = None,
    model: options.Target = None,
    assistant: options.Assistant = None,
    head: options.HeadSources = None,
    dtype: options.Dtype = None,
    draft_dtype: options.DraftDtype = None,
    modes: options.Modes = "lossless,min_p",
    sample: options.Sample = False,
    max_new_tokens: options.MaxNewTokens = 160,
    out: Annotated[Path, options.of_output(metavar="FILE", help="The HTML file to write.")],
    overwrite: Annotated[
        bool, options.of_output("--overwrite", help="Write FILE although it is there already.")
    ] = False,
    settings: options.Settings = None,
) -> None:
    """Write a page of the text with every token's status: kept, kept only by a lossy rule, corrected, or unverified.

    Point at a token, or reach it by the Tab key, to see its probabilities under target and draft, the target's
    likeliest tokens, and the values that the rule compared. The page works offline.
    """
    given = options.read_set(settings, SETTINGS)
    own = {"gamma": GAMMA} | given
    setup = Setup.of(pair, model, assistant, dtype, draft_dtype, own, head=head, sample=sample)
    if not out.parent.is_dir() or out.is_dir():
        raise LossyValueError(f"`--out` has to be a file in an existing folder, but is {str(out)!r}")
    if out.exists() and not overwrite:
        raise LossyValueError(
            f"`--out` has to be a new file, but {str(out)!r} is there; choose another, or add `--overwrite`"
        )
    setup.models.check({"PROMPT": prompt})
    named, lookup = setup.modes(modes, setup.heads), given.get("prompt_lookup", 0)
    for each in named:  # before models are loaded
        each.check_draft(model=setup.models.has_draft, lookup=lookup > 0)
    loaded = setup.load({"PROMPT": prompt})
    models = replace(loaded.models, lookup=lookup)
    longest = getattr(models.draft, "longest", None)
    if "gamma" not in given and longest is not None and longest < GAMMA:  # a block is short
        named = replace(setup, settings={**own, "gamma": longest}).modes(modes, loaded.heads)
    for each in named:
        each.check_models(models)
    example = loaded.shown if prompt is None else None
    text = prompt if example is None else example.prompt
    (batch,) = batches_of(
        [loaded.read(text, as_question=pair is not None)], device=loaded.target.device, seed=setup.seed
    )
    right = partial(loaded.right, example) if example is not None and example.answer else None
    page = compare(models, loaded.tokenizer, named, batch, max_new_tokens, prompt=text, right=right)
    page.save(out)
    Console().print(f"written: {out}", style="dim", soft_wrap=True, markup=False, highlight=False)
