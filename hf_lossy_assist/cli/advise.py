"""``lossy-assist advise``: what each rule would bring on given models, before any is run."""

from __future__ import annotations

import shlex
from dataclasses import fields
from typing import Annotated

from cyclopts import Parameter

from ..errors import need
from . import options
from .console import Console


def advise(
    *,
    models: options.RoundedModels = options.RoundedModels(),
    prompts: options.Prompts = options.Prompts(),
    limit: options.Limit = 12,
    modes: Annotated[
        str | None,
        Parameter(
            group=options.DECODING,
            help="Rules with settings, as for evaluate, at the @GAMMA that each says or at its best; the usual ones by "
            "default.",
        ),
    ] = None,
    max_new_tokens: options.MaxNewTokens = None,
    out: options.Out = None,
) -> None:
    """Predict what each rule brings greedily: tokens per call, speed here, and how far it leaves the target [lab].

    The target answers the prompts, and target and draft model read the answers
    once. Without --modes, the usual rules are compared. Rules that look at
    whole drafts or at states, and other drafters, are not predicted: measure a
    dozen prompts with `evaluate`. OUT gets advice.json, and
    generation_config.json with the recommended setting.
    """
    need("lab", "`lossy-assist advise`")
    options.check_names(modes or "lossless", ["everything"])
    models.check({})
    task = prompts.of(models.pair)
    from ..evaluation.advising import advise as advice_on

    pair, screen = models.load(), Console()
    advice = advice_on(
        pair.target, pair.draft, pair.tokenizer, task, modes=modes, limit=limit,
        split=prompts.chosen_split(), max_new_tokens=max_new_tokens, out=out,
    )  # fmt: skip
    screen.print("\n".join(advice.said), highlight=False)
    screen.print(advice.table())
    given = {x.name: getattr(group, x.name) for group in (models, prompts) for x in fields(group)}
    words = []  # evaluate has the same options
    for name, value in {**given, "max_new_tokens": max_new_tokens}.items():
        if value not in (None, False):
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [f"{value}"])]
    screen.print(advice.next_step(shlex.join(words)), highlight=False, soft_wrap=True)
    if out is not None:
        screen.print(f"written: {out}", style="dim", soft_wrap=True)
