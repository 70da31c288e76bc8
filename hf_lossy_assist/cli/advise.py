"""``lossy-assist advise``: what each rule would bring on given models, before any is run."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ..evaluation.advice.advice import DRAFT_COST
from ..evaluation.advice.advising import advise as advice_on
from . import options
from .console import Console, progress
from .setup import CHOOSING, LOADING, LONGEST, Setup

SETTINGS = {
    **LOADING,
    **CHOOSING,
    "max_new_tokens": LONGEST,
    "dtype": "the weights' type; as stored by default, float32 with --pair arithmetic",
    "draft_cost": "also a table for hardware where a drafted token takes so much of a token's; [C,C,…] for several",
    "tune": "true times more draft lengths, more often",
}


def advise(
    pair: options.PairName = None,
    model: options.Target = None,
    assistant: options.Assistant = None,
    draft_dtype: options.DraftDtype = None,
    task: options.TaskName = None,
    data: options.Data = None,
    limit: Annotated[
        int | None, options.of_prompts(min=1, help="The most prompts; by default 12, or four batches.")
    ] = None,
    batch_size: options.BatchSize = 1,
    modes: Annotated[
        str | None,
        options.of_decoding(metavar="MODE,…", help="Rules with settings, as for evaluate; the usual ones by default."),
    ] = None,
    gammas: Annotated[
        str | None, options.of_decoding(metavar="N,…", help="Draft lengths to show; each rule's best by default.")
    ] = None,
    sample: options.Sample = False,
    out: options.OutFolder = None,
    as_json: Annotated[
        bool, options.of_output("--json", help="Print what advice.json has, in place of tables.")
    ] = False,
    settings: options.Settings = None,
) -> None:
    """Predict what each rule brings: tokens per call, speed here, and how far it leaves the target.

    The target answers the prompts, and target and draft model read the answers once. Without --modes, the usual rules
    are compared, and without --gammas each with its best draft length. Rules that look at whole drafts or at states,
    and other drafters, are not predicted: measure a dozen prompts with `evaluate`.
    """
    given = options.read_set(settings, SETTINGS)
    setup = Setup.of(
        pair, model, assistant, given.get("dtype"), draft_dtype, given, task=task, data=data, sample=sample
    )
    lengths, costs = options.numbers("--gammas", gammas, int), given.get("draft_cost", [])
    shares = costs if isinstance(costs, list) else [costs]
    for share in shares:
        DRAFT_COST.check("draft_cost", share)
    loaded, screen = setup.load(), Console(stderr=as_json)
    with progress(screen) as bar:
        advice = advice_on(
            loaded.target, loaded.draft, loaded.tokenizer, loaded.task, modes=modes, gammas=lengths, limit=limit,
            split=setup.split, max_new_tokens=given.get("max_new_tokens"), temperature=setup.temperature,
            top_p=setup.top_p, batch_size=batch_size, tune=given.get("tune", False), seed=setup.seed, out=out,
            measure="task" if setup.is_scored else None, track=bar.track,
        )  # fmt: skip
    if as_json:
        typer.echo(json.dumps(advice.entry, indent=2, ensure_ascii=False))
        return
    screen.print("\n".join(advice.said), highlight=False)
    screen.print(advice.table())
    screen.print(advice.next_step, highlight=False, soft_wrap=True)
    for share in shares:
        screen.print(f"where a drafted token takes {share:g} of a token of the target:", highlight=False)
        screen.print(advice.with_draft_cost(share).table())
    if out is not None:
        screen.print(f"written: {out}", style="dim", soft_wrap=True)
