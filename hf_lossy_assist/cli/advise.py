"""``lossy-assist advise``: what each rule would bring on given models, before any is run."""

from __future__ import annotations

import json
from typing import Annotated

from cyclopts import Parameter

from ..errors import need
from . import options
from .console import Console
from .options import AT_LEAST_1

LENGTHS = Parameter(group=options.DECODING, help="Draft lengths to show, as in 2,5; each rule's best by default.")


def advise(
    *,
    models: options.RoundedModels = options.RoundedModels(),
    prompts: options.Prompts = options.Prompts(),
    limit: Annotated[
        int | None,
        AT_LEAST_1,
        Parameter(group=options.PROMPTS, help="The most prompts; by default 12, or four batches."),
    ] = None,
    batch_size: options.BatchSize = 1,
    modes: Annotated[
        str | None,
        Parameter(group=options.DECODING, help="Rules with settings, as for evaluate; the usual ones by default."),
    ] = None,
    gammas: Annotated[tuple[int, ...], options.COMMAS, LENGTHS] = (),
    max_new_tokens: options.MaxNewTokens = None,
    decoding: options.Decoding = options.Decoding(),
    as_json: Annotated[
        bool, Parameter(name="--json", group=options.OUTPUT, help="Print what advice.json has, in place of tables.")
    ] = False,
    out: options.Out = None,
) -> None:
    """Predict what each rule brings: tokens per call, speed here, and how far it leaves the target [lab].

    The target answers the prompts, and target and draft model read the answers
    once. Without --modes, the usual rules are compared, and without --gammas
    each with its best draft length. Rules that look at whole drafts or at
    states, and other drafters, are not predicted: measure a dozen prompts with
    `evaluate`.
    """
    need("lab", "`lossy-assist advise`")
    decoding.check()
    models.check({})
    task, scored = prompts.of(models.pair)
    from ..evaluation.advice.advising import advise as advice_on

    pair, screen = models.load(), Console(stderr=as_json)
    advice = advice_on(
        pair.target, pair.draft, pair.tokenizer, task, modes=modes, gammas=gammas, limit=limit,
        split=prompts.chosen_split(), max_new_tokens=max_new_tokens, **decoding.law, batch_size=batch_size,
        seed=decoding.seed or 0, out=out, measure="task" if scored else None,
    )  # fmt: skip
    if as_json:
        print(json.dumps(advice.entry, indent=2, ensure_ascii=False))  # noqa: T201
        return
    screen.print("\n".join(advice.said), highlight=False)
    screen.print(advice.table())
    screen.print(advice.next_step, highlight=False, soft_wrap=True)
    if out is not None:
        screen.print(f"written: {out}", style="dim", soft_wrap=True)
