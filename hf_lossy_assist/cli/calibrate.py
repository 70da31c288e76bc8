"""``lossy-assist calibrate``: the fastest setting with a bounded loss, and its certificate."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.live import Live

from ..errors import LossyValueError
from ..evaluation.answers import AnswerStore
from ..evaluation.calibration.calibrating import calibrate as certify_fastest
from ..evaluation.calibration.calibrating import calibrate_from
from ..evaluation.evaluate import reference_of
from ..evaluation.evaluation import Evaluation
from ..evaluation.modes import DecodingMode
from ..evaluation.tables import Column, NumberTable, number, table
from ..generation.certificate import Certificate
from ..generation.spelling import FORM, split
from ..store.folder import this_process
from . import options
from .console import Console, progress
from .setup import CHOOSING, DRAFTING, LOADING, LONGEST, Setup

LIMITS = {
    "max_new_tokens": LONGEST,
    "max_longer": "per cent by which answers may grow on average; any length by default",
    "confidence": "in per cent, of all certified settings together; 95 by default",
}
_OTHERS = ("top_p", "prompt_lookup")  # of which no certificate is made
SETTINGS = {key: words for key, words in (LOADING | CHOOSING | DRAFTING | LIMITS).items() if key not in _OTHERS}


def calibrate(
    *,
    pair: options.PairName = None,
    model: options.Target = None,
    assistant: options.Assistant = None,
    head: options.HeadSources = None,
    dtype: options.Dtype = None,
    draft_dtype: options.DraftDtype = None,
    task: options.TaskName = None,
    data: options.Data = None,
    limit: options.Limit = 5000,
    answers: Annotated[
        Path | None,
        options.of_prompts("--from", help="A folder that `evaluate` has written; nothing is generated."),
    ] = None,
    modes: Annotated[
        str | None,
        options.of_decoding(metavar="MODE,…", help=f"Settings, for each rule from cautious to bold: {FORM}."),
    ] = None,
    sample: options.Sample = False,
    engine: options.Engine = "hf",
    max_loss: Annotated[float, options.of_output(help="Points of the score that may be lost on average.")] = 1.0,
    out: Annotated[Path, options.of_output(help="Folder for the certificate and the generation configuration.")],
    settings: options.Settings = None,
) -> None:
    """Certify the fastest setting that loses at most so many points of a task's score.

    The settings of each rule are tested in the given order. Problems are answered until a setting is certified or no
    longer can be; the bound stays valid however often it is checked. OUT gets certificate.json and
    generation_config.json, which `--mode OUT` and `GenerationConfig.from_pretrained(OUT)` read. The exit status is 1
    if no setting is certified.
    """
    given = options.read_set(settings, SETTINGS)
    setup = Setup.of(
        pair, model, assistant, dtype, draft_dtype, given, head=head, task=task, data=data, sample=sample,
        engine=engine,
    )  # fmt: skip
    limits = {"max_loss": max_loss, **{key: given[key] for key in ("confidence", "max_longer") if key in given}}
    screen, heads = Console(), setup.heads
    if answers is not None:
        chosen = None if modes is None else [name.strip() for name in split(modes, ",")]
        certificate = calibrate_from(answers, modes=chosen, heads=heads, **limits)
    else:
        if modes is None:
            raise LossyValueError("`--modes` has to name the settings to test, or `--from` a folder of `evaluate`")
        with setup.vllm or nullcontext():
            evaluation = _evaluation(setup, modes, limit, given)
            certificate = _answered(evaluation, limits, out, screen)
        heads = evaluation.models.heads
    certificate.save(out, heads)
    screen.print(outcome_table(certificate))
    if certificate.chosen is None:
        screen.print(f"no setting is certified; written: {out}", soft_wrap=True)
        raise typer.Exit(1)
    screen.print(f"chosen: {certificate.chosen}; written: {out}", soft_wrap=True, markup=False, highlight=False)


def _evaluation(setup: Setup, text: str, limit: int, given: dict[str, Any]) -> Evaluation:
    """Return what is to be answered: the settings, and the target alone where they lack something to compare with."""
    if not setup.is_scored:
        raise LossyValueError("`--task` has to be given, because losses are of a task's score")
    loaded = setup.load()
    modes: list[DecodingMode] = setup.modes(text, loaded.heads)
    reference = given.get("reference")
    if reference is None and reference_of(modes) == modes[0].label and modes[0].gamma is not None:
        modes = [*setup.modes("plain", loaded.heads), *modes]
    return Evaluation(
        loaded.models, loaded.tokenizer, loaded.task, modes, reference or reference_of(modes), limit, setup.split,
        max_new_tokens=given.get("max_new_tokens"), seed=setup.seed, process=this_process(),
    )  # fmt: skip


def _answered(evaluation: Evaluation, limits: dict[str, float], out: Path, screen: Console) -> Certificate:
    screen.print(
        "Each setting: problems answered, of those at which its test is expected to end, judged by its losses so far; "
        f"{len(evaluation.examples)} at most.",
        style="dim", soft_wrap=True, highlight=False,
    )  # fmt: skip
    bar = progress(screen)
    tasks_of: dict[str, Any] = {}

    def note(label: str, problems: int, expected: int, state: str) -> None:
        if label not in tasks_of:
            tasks_of[label] = bar.add_task(label)
        bar.update(tasks_of[label], completed=problems, total=expected, description=f"{label} {state}".rstrip())

    with Live(bar, console=screen, transient=True, refresh_per_second=2):
        store = AnswerStore(out / "answers", evaluation.plan())
        return certify_fastest(evaluation, store=store, note=note, **limits)


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
    title = f"At most {certificate.max_loss:g} points lost,{length} with {certificate.confidence:g} % confidence"
    return table(certificate.tested, columns, title)
