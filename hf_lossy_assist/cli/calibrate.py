"""``lossy-assist calibrate``: the fastest setting whose loss is bounded, with a certificate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from .. import tasks
from ..calibration.calibrating import calibrate as certify_fastest
from ..calibration.calibrating import calibrate_from
from ..calibration.certificate import Certificate, TestedSetting
from ..calibration.certificate_card import write_card
from ..errors import LossyValueError
from ..evaluation.answers import AnswerStore
from ..evaluation.evaluate import Evaluation, named_modes, reference_of
from ..evaluation.modes import parse_gamma
from ..mining.mining_run import this_process
from .console import limit_threads, progress
from .models import ModelOptions, head_sources
from .options import (
    DraftSource,
    Dtype,
    FirstSeed,
    PairInstead,
    Sample,
    TargetSource,
    TaskData,
    TaskName,
    TaskOptions,
    Threads,
    Where,
    parse_task_options,
)
from .rendering import Column, number, table


def calibrate(
    out: Annotated[Path, typer.Option(help="Folder for the certificate and the generation configuration.")],
    answers: Annotated[
        Path | None, typer.Option("--from", help="A folder that `evaluate` has written; nothing is generated.")
    ] = None,
    modes: Annotated[
        str | None,
        typer.Option(help="Settings, of each rule from cautious to bold: RULE[+RULE][@GAMMA][:KEY=VALUE…],…"),
    ] = None,
    max_loss: Annotated[float, typer.Option(help="How many points of the score may be lost on average.")] = 1.0,
    confidence: Annotated[float, typer.Option(help="In per cent, of all that is certified together.")] = 95.0,
    model: TargetSource = None,
    assistant: DraftSource = None,
    pair: PairInstead = None,
    folder: Annotated[Path | None, typer.Option(help="Folder with the pair's `target` and `draft` to use.")] = None,
    task: TaskName = None,
    data: TaskData = None,
    task_option: TaskOptions = None,
    reference: Annotated[
        str | None, typer.Option(help="What losses are measured against; plain, else lossless by default.")
    ] = None,
    head: Annotated[
        list[str] | None, typer.Option(metavar="RULE=SOURCE", help="A trained head, e.g. judge=FOLDER. Repeatable.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many problems at most.")] = 5000,
    split: Annotated[str, typer.Option(help="Which problems of the task.")] = "test",
    gamma: Annotated[str, typer.Option(help="Drafted tokens per round, or 'auto'.")] = "5",
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Longest response; the task's by default.")] = None,
    sample: Sample = False,
    temperature: Annotated[float, typer.Option(help="Temperature, with --sample.")] = 0.9,
    seed: FirstSeed = 0,
    dtype: Dtype = None,
    device: Where = None,
    threads: Threads = None,
) -> None:
    """Certify the fastest setting that loses at most so many points of a task's score.

    The settings of each rule are tested in the order given, with a bound that holds however often one looks: problems
    are answered until a setting is certified or can't be any more. OUT gets certificate.json, a card with a plot, and
    generation_config.json, which `--config OUT` and `GenerationConfig.from_pretrained(OUT)` read. The exit status is 1
    where no setting is certified.
    """
    limit_threads(threads)
    screen = Console()
    named = head_sources(head or ())
    if answers is not None:
        chosen = None if modes is None else [name.strip() for name in modes.split(",")]
        certificate = calibrate_from(answers, max_loss, confidence, chosen, named)
    else:
        if modes is None:
            raise LossyValueError("`--modes` has to name the settings to test, or `--from` a folder of `evaluate`")
        listed = named_modes(modes, parse_gamma("--gamma", gamma), temperature if sample else None)
        if reference is None and reference_of(listed) == listed[0].label and listed[0].gamma is not None:
            listed = [*named_modes("plain", temperature=temperature if sample else None), *listed]
        options = ModelOptions(pair, model, assistant, dtype, device, folder)
        options.check({} if pair is not None else {"--task": task})
        given = None if task is None else tasks.load(task, data, **parse_task_options(task_option or ()))
        loaded = options.load_for_task(given, head or (), assisted=True)
        evaluation = Evaluation(
            loaded.models, loaded.tokenizer, loaded.task, listed, reference or reference_of(listed), limit, split, 1,
            max_new_tokens, seed, this_process(),
        )  # fmt: skip
        certificate = _answered(evaluation, max_loss, confidence, out, screen)
    used = {rule: named[rule] for rule in certificate.heads if rule in named}
    certificate.save(out, used or None)
    write_card(certificate, out)
    screen.print(outcome_table(certificate))
    if certificate.chosen is None:
        screen.print(f"no setting is certified; written: {out}", soft_wrap=True)
        raise typer.Exit(1)
    screen.print(f"chosen: {certificate.chosen}; written: {out}", soft_wrap=True, markup=False, highlight=False)


def _answered(evaluation: Evaluation, max_loss: float, confidence: float, out: Path, screen: Console) -> Certificate:
    bar = progress(screen)
    tasks_of: dict[str, Any] = {}

    def note(label: str, problems: int, state: str) -> None:
        if label not in tasks_of:
            tasks_of[label] = bar.add_task(label, total=len(evaluation.examples))
        bar.update(tasks_of[label], completed=problems, description=f"{label} {state}".rstrip())

    with Live(bar, console=screen, transient=True, refresh_per_second=2):
        return certify_fastest(evaluation, max_loss, confidence, AnswerStore(out / "answers", evaluation.plan()), note)


def outcome_table(certificate: Certificate) -> Table:
    """Lay out every setting that was to be tested."""
    columns: dict[str, Column] = {
        "setting": lambda x: x.mode,
        "outcome": lambda x: x.outcome,
        "problems": lambda x: str(x.n),
        "loss\n(points)": lambda x: number(x.loss),
        "at most": lambda x: number(x.bound),
        "tokens\n/s": lambda x: number(x.tokens_per_second),
    }
    rows: list[TestedSetting] = list(certificate.tested)
    title = f"At most {certificate.max_loss:g} points lost, with {certificate.confidence:g} % confidence"
    return table(rows, columns, title)
