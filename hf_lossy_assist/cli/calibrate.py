"""``lossy-assist calibrate``: the fastest setting with a bounded loss, and its certificate."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live

from ..calibration.calibrating import calibrate as certify_fastest
from ..calibration.calibrating import calibrate_from
from ..call.certificate import Certificate, TestedSetting
from ..call.spelling import FORM, split
from ..errors import LossyValueError
from ..evaluation.answers import AnswerStore
from ..evaluation.evaluate import Evaluation, reference_of
from ..evaluation.tables import Column, NumberTable, number, table
from .console import Console, progress
from .evaluate import EvaluationOptions
from .models import read_heads


def calibrate(
    shared: EvaluationOptions,
    out: Annotated[Path, typer.Option(help="Folder for the certificate and the generation configuration.")],
    answers: Annotated[
        Path | None, typer.Option("--from", help="A folder that `evaluate` has written; nothing is generated.")
    ] = None,
    modes: Annotated[
        str | None, typer.Option(metavar="MODE,…", help=f"Settings, for each rule from cautious to bold: {FORM}.")
    ] = None,
    max_loss: Annotated[float, typer.Option(help="Points of the score that may be lost on average.")] = 1.0,
    max_longer: Annotated[
        float | None,
        typer.Option(help="Per cent by which answers may grow on average; any length by default."),
    ] = None,
    confidence: Annotated[float, typer.Option(help="In per cent, of all certified settings together.")] = 95.0,
    limit: Annotated[int, typer.Option(min=1, help="The most problems.")] = 5000,
) -> None:
    """Certify the fastest setting that loses at most so many points of a task's score.

    The settings of each rule are tested in the given order. Problems are answered until a setting is certified or no
    longer can be; the bound stays valid however often it is checked. OUT gets certificate.json, a card with a plot, and
    generation_config.json, which `--mode OUT` and `GenerationConfig.from_pretrained(OUT)` read. The exit status is 1
    if no setting is certified.
    """
    screen = Console()
    heads: Mapping[str, Any] = read_heads(shared.head)
    if answers is not None:
        chosen = None if modes is None else [name.strip() for name in split(modes, ",")]
        certificate = calibrate_from(answers, max_loss, confidence, chosen, heads, max_longer)
    else:
        if modes is None:
            raise LossyValueError("`--modes` has to name the settings to test, or `--from` a folder of `evaluate`")
        listed = shared.listed(modes)
        if shared.reference is None and reference_of(listed) == listed[0].label and listed[0].gamma is not None:
            listed = [*shared.listed("plain"), *listed]
        evaluation = shared.evaluation(listed, limit, assisted=True)
        with shared.vllm or nullcontext():
            certificate = _answered(evaluation, (max_loss, confidence, max_longer), out, screen)
        heads = evaluation.models.heads
    certificate.save(out, heads)
    screen.print(outcome_table(certificate))
    if certificate.chosen is None:
        screen.print(f"no setting is certified; written: {out}", soft_wrap=True)
        raise typer.Exit(1)
    screen.print(f"chosen: {certificate.chosen}; written: {out}", soft_wrap=True, markup=False, highlight=False)


def _answered(
    evaluation: Evaluation, limits: tuple[float, float, float | None], out: Path, screen: Console
) -> Certificate:
    limit = len(evaluation.examples)
    screen.print(
        f"Each setting: problems answered, of those at which its test is expected to end, judged by its losses so far; "
        f"{limit} at most.",
        style="dim", soft_wrap=True, highlight=False,
    )  # fmt: skip
    bar = progress(screen)
    tasks_of: dict[str, Any] = {}

    def note(label: str, problems: int, expected: int, state: str) -> None:
        if label not in tasks_of:
            tasks_of[label] = bar.add_task(label)
        bar.update(tasks_of[label], completed=problems, total=expected, description=f"{label} {state}".rstrip())

    with Live(bar, console=screen, transient=True, refresh_per_second=2):
        max_loss, confidence, max_longer = limits
        store = AnswerStore(out / "answers", evaluation.plan())
        return certify_fastest(evaluation, max_loss, confidence, store, note, max_longer)


def outcome_table(certificate: Certificate) -> NumberTable:
    columns: dict[str, Column] = {
        "setting": lambda x: x.mode,
        "outcome": lambda x: x.outcome,
        "problems": lambda x: str(x.n),
        "loss\n(points)": lambda x: number(x.loss),
        "at most": lambda x: number(x.bound),
        "tokens\n/s": lambda x: number(x.tokens_per_second),
    }
    length = ""
    if certificate.max_longer is not None:
        columns |= {"longer\n(%)": lambda x: number(x.longer), "by at most": lambda x: number(x.longer_bound)}
        length = f" and answers at most {certificate.max_longer:g} % longer,"
    rows: list[TestedSetting] = list(certificate.tested)
    title = f"At most {certificate.max_loss:g} points lost,{length} with {certificate.confidence:g} % confidence"
    return table(rows, columns, title)
