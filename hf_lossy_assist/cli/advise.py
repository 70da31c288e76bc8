"""``lossy-assist advise``: what each rule would bring on given models, before any is run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from ..advice.advice import DRAFT_COST
from ..advice.advising import Advising
from ..evaluation.answers import answers_of, problem_sum
from ..heads import ModelIdentity
from .console import Console, progress
from .models import TaskDecodingOptions
from .options import (
    PromptFile,
    numbers,
)


@dataclass(frozen=True)
class AdviseOptions(TaskDecodingOptions):
    """The options of ``advise``."""

    gamma: str | None = None
    modes: Annotated[
        str | None,
        typer.Option(metavar="MODE,…", help="Rules with settings, as for evaluate; the usual ones by default."),
    ] = None
    gammas: Annotated[
        str | None, typer.Option(metavar="N,…", help="Draft lengths to show; each rule's best by default.")
    ] = None
    prompts: Annotated[int, typer.Option(min=1, help="How many prompts the target answers.")] = 12
    prompt_file: PromptFile = None
    draft_cost: Annotated[
        str | None,
        typer.Option(metavar="C,…", help="Tables for other hardware: a drafted token's time, as a share of a token's."),
    ] = None
    answers: Annotated[
        Path | None, typer.Option(help="A folder of evaluate whose texts of plain or lossless are the answers.")
    ] = None
    tune: Annotated[bool, typer.Option("--tune", help="Time more draft lengths, more often.")] = False
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the advice, a plot and the setting; an interrupted run goes on there."),
    ] = None


def advise(options: AdviseOptions) -> None:
    """Predict what each rule brings: tokens per call, speed here, and how far it leaves the target.

    The target answers the prompts, and each model reads the answers once. Only the recommended rule runs, on four
    prompts, as a check. Without --modes, the usual rules are compared, and without --gammas each with its best draft
    length.
    """
    options.check()
    gammas, shares = numbers("--gammas", options.gammas, int), numbers("--draft-cost", options.draft_cost, float)
    for share in shares:
        DRAFT_COST.check("--draft-cost", share)
    loaded = options.load(options.own_task()).asked("--prompt-file", options.prompt_file).with_heads(options.head)
    source, screen = loaded.task or loaded.prompts, Console()
    examples = source.examples(options.split, options.prompts)
    prompts, answers = loaded.encode(examples), {}
    if options.answers is not None:
        problems = [problem_sum(ids, example.answer) for ids, example in zip(prompts, examples, strict=True)]
        plan = {"target": asdict(ModelIdentity.of(loaded.target)), "problems": problems}
        answers = answers_of(options.answers, {**plan, "temperature": options.warmth, "top_p": options.top_p})
    with progress(screen) as bar:
        advice = Advising(
            loaded.models, loaded.tokenizer, prompts, options.modes or "", gammas,
            options.max_new_tokens or loaded.length, source.ends, options.warmth, options.top_p,
            seed=options.seed or 0, tune=options.tune, out=options.out,
            answers=answers, track=bar.track,
        ).run()  # fmt: skip
    screen.print("\n".join(advice.said), highlight=False)
    screen.print(advice.table())
    screen.print(advice.next_step, highlight=False, soft_wrap=True)
    for share in shares:
        screen.print(f"where a drafted token takes {share:g} of a token of the target:", highlight=False)
        screen.print(advice.with_draft_cost(share).table())
    if options.out is not None:
        screen.print(f"written: {options.out}", style="dim", soft_wrap=True)
