"""The course of ``lossy-assist bench``: compare, judge, predict, and put the machine's limit beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.progress import Progress

from ..bench.contenders import Contender, Models
from ..bench.matchup import Request, play
from ..bench.meters import Clock
from ..bench.predictions import CLOSED_FORMS, Prediction, predict
from ..bench.quality import Quality, answers, judge, qualities
from ..bench.roofline import Cost, Roofline, measure_rates
from ..bench.standings import Standing, standings
from ..bench.trials import Batch, Instruments, Workload
from ..errors import LossyUnsupportedError
from ..tasks import Example
from .bench_cast import Cast, batches_of


def reference(field: Sequence[Contender | Standing]) -> str | None:
    """Return the label of the first that is plainly lossless: with it the others are compared."""
    return next((one.label for one in field if one.config.get("lossy_mode") == "lossless"), None)


@dataclass(frozen=True, eq=False)
class Match:
    """Who meets whom, over what.

    Attributes
    ----------
    cast
        Models as loaded, with tokenizer and task.
    models
        The models that are timed: grown, or the same.
    contenders, examples, batches, workload
        Who answers what.
    batch
        Prompts per batch.
    repeats
        How often speed is measured.
    judged
        Whether there are right answers.
    accuracy_problems
        How many answers are judged; None for those of the comparison.
    """

    cast: Cast
    models: Models
    contenders: Sequence[Contender]
    examples: Sequence[Example]
    batches: Sequence[Batch]
    workload: Workload
    batch: int
    repeats: int
    judged: bool
    accuracy_problems: int | None


@dataclass(frozen=True, eq=False)
class Results:
    """What came out.

    Attributes
    ----------
    standings, qualities, predictions
        One row per contender; the latter two where there is something to judge, or a closed form.
    roofline
        The machine's limit, if it was measured.
    notes
        What a reader has to know.
    """

    standings: Sequence[Standing]
    qualities: Sequence[Quality]
    predictions: Sequence[Prediction]
    roofline: Roofline | None
    notes: Sequence[str] = field(default=())


def hold(
    match: Match,
    bar: Progress,
    write: Callable[[Any], None],
    instruments: Instruments,
    *,
    with_roofline: bool,
) -> Results:
    """Measure everything; every request is written as it comes, and the summary at the end."""
    requests, texts = _compare(match, bar, write, instruments)
    marks = _judge(match, texts, bar) if match.judged else []
    predictions = _predict(match, bar)
    limit, notes = _limit(match, requests, instruments.clock) if with_roofline else (None, [])
    comparable = None if match.workload.do_sample else texts
    rows = standings(match.contenders, requests, comparable, match.batch, limit)
    for row in (*([limit] if limit else []), *rows, *marks, *predictions):
        write(row)
    return Results(rows, marks, predictions, limit, notes)


def _compare(
    match: Match, bar: Progress, write: Callable[[Any], None], instruments: Instruments
) -> tuple[list[Request], dict[str, list[list[int]]]]:
    requests: list[Request] = []
    texts: dict[str, list[list[int]]] = {contender.label: [] for contender in match.contenders}
    course = play(
        match.models, match.contenders, match.batches, match.workload, repeats=match.repeats, instruments=instruments
    )
    total = len(match.contenders) * len(match.batches) * (match.repeats + 1)
    for request, trial in bar.track(course, total=total, description="comparing"):
        write(request)
        requests.append(request)
        if request.repeat == 0:
            texts[request.label] += [row.tolist() for row in trial.rows]
    return requests, texts


def _judge(match: Match, texts: dict[str, list[list[int]]], bar: Progress) -> list[Quality]:
    cast, examples = match.cast, match.examples
    if match.accuracy_problems is not None:
        # A grown model says what the small one says, and the small one says it sooner.
        examples = cast.examples(match.accuracy_problems)
        pad = cast.tokenizer.pad_token_id or 0
        batches = batches_of(cast.encode(examples), match.batch, None, pad, cast.models.target.device)
        texts = {}
        for contender in match.contenders:
            said = answers(cast.models, contender, batches, match.workload)
            texts[contender.label] = list(
                bar.track(said, total=len(examples), description=f"judging {contender.label}")
            )
    right = {label: judge(cast.tokenizer, cast.task, examples, said) for label, said in texts.items()}
    return qualities(right, reference(match.contenders))


def _predict(match: Match, bar: Progress) -> list[Prediction]:
    if not match.workload.do_sample or match.batch > 1:
        return []
    known = [c for c in match.contenders if c.config.get("lossy_mode") in CLOSED_FORMS]
    return [
        predict(match.cast.models, contender, match.batches, match.workload)
        for contender in bar.track(known, description="closed forms")
    ]


def _limit(match: Match, requests: Sequence[Request], clock: Clock) -> tuple[Roofline | None, list[str]]:
    target, draft = match.models.target, match.models.draft
    prompt = sum(batch.mask.sum().item() for batch in match.batches) / len(match.examples)
    response = sum(r.tokens for r in requests) / len(requests) / match.batch
    try:
        costs = Cost.of(target), Cost.of(draft)
    except LossyUnsupportedError as error:
        return None, [f"no roofline: {error}"]
    return Roofline(
        target=costs[0],
        draft=costs[1],
        target_rates=measure_rates(target, clock),
        draft_rates=measure_rates(draft, clock),
        context=round(prompt + response / 2),
        batch=match.batch,
    ), []
