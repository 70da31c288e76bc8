"""``lossy-assist mine``: make training data for heads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ..errors import LossyValueError, need
from ..generation.spelling import read_settings, split
from ..store.folder import this_process
from ..tasks.api_model import ApiModel
from ..values import check_keys, check_name
from . import options
from .console import Console, figures_table

if TYPE_CHECKING:
    from ..training.labelling import Labels, PromptLabels


def mine(
    *,
    models: options.Models = options.Models(),
    target_api: Annotated[
        str | None,
        Parameter(group=options.MODELS, help="URL#NAME: the target NAME is at this OpenAI-compatible API, …/v1."),
    ] = None,
    prompts: options.Prompts = options.Prompts(),
    limit: options.Limit = 1000,
    batch_size: options.BatchSize = 32,
    labels: Annotated[str, Parameter(group=options.DECODING, help="KIND[:KEY=VALUE…]; see above.")] = "judge",
    max_new_tokens: options.Longest = 160,
    decoding: options.Sampling = options.Sampling(),
    out: Annotated[
        Path, Parameter(group=options.OUTPUT, help="Folder for the labels; the same one continues an interrupted run.")
    ],
) -> None:
    """Find out which tokens of a draft change the answer, and store them with the models' hidden states [lab].

    Interrupted runs continue when the command is repeated. With `accelerate
    launch -m hf_lossy_assist mine …` the prompts are split over the processes.

    Labels, KIND[:KEY=VALUE…]:
      judge: which mismatches of draft and target change the answer
        mismatches: about so many of each prompt, drawn by the seed; else all
        writer_dtype: int8 or int4: a rounded copy of the target writes
      ratio: both models' probabilities of drafted tokens
        rows: tokens per prompt for each of the four kinds of prefix; 8 by default
    """
    need("lab", "`lossy-assist mine`")
    api = None if target_api is None else _api(target_api)
    if prompts.task is None and prompts.data is not None:
        raise LossyValueError("`--data` is for `--task`; name the task, `prompts` for prompts of your own")
    models.check({"--task": prompts.task}, () if api is None else ("--model",))
    task = prompts.of(models.pair, None)
    if prompts.task is None and not task.scored:
        raise LossyValueError(f"`--task` has to be given: the pair {models.pair!r} has none of its own")
    from ..evaluation.answers import provenance
    from ..training.labelling import Labelling, load_mined
    from ..training.labelling import mine as run

    process, screen, kind = this_process(), Console(), _read_labels(labels)
    if kind.temperature is None:
        decoding.check()
    if decoding.sample or decoding.temperature is not None:
        kind = replace(kind, temperature=decoding.temperature or 1.0)
    pair = replace(models.load(), task=task)
    labelling = Labelling(
        pair, kind, api, limit, prompts.chosen_split(None), batch_size, max_new_tokens, decoding.seed or 0,
        {"data": prompts.data, "named": prompts.task}, process,
    )  # fmt: skip
    counts = {"limit": limit, "batch_size": batch_size, "labels": labels, "processes": process.count}
    whole = models.pair if models.assistant is None and api is None else None
    run(labelling, out, provenance=provenance(pair.draft.device, **counts, pair=whole))
    rows = load_mined(out).prompts
    if len(rows) < len(labelling.examples):
        screen.print(f"process {process.number} is done; others are still at work on {out}")
    else:
        screen.print(figures_table(figures_of(kind.name, rows)))


def _read_labels(text: str) -> Labels:
    """Read a kind of labels, ``KIND[:KEY=VALUE…]``."""
    from ..training.judge_labels import JudgeLabels
    from ..training.ratio_labels import RatioLabels

    kinds = {each.name: each for each in (JudgeLabels, RatioLabels)}
    name, *settings = split(text, ":")
    check_name("labels", name, kinds)
    given = read_settings(settings, "labels")
    own = [each.name for each in fields(kinds[name]) if each.name != "temperature"]  # which has an option
    check_keys(f"`labels` {name}", own, given)
    return kinds[name](**given)


def _api(target: str) -> ApiModel:
    url, _, name = target.partition("#")
    if not name or not url.startswith(("http://", "https://")):
        raise LossyValueError(
            f"`--target-api` has to be a URL and a name like http://localhost:8000/v1#org/model, but is {target!r}"
        )
    return ApiModel(url, name)


def figures_of(kind: str, rows: Sequence[PromptLabels]) -> dict[str, object]:
    """Return what a folder holds, given its prompts."""
    statuses, totals = Counter(row.status for row in rows), Counter[str]()
    for row in rows:
        totals.update({name: value for name, value in row.columns.items() if isinstance(value, int)})
    shown = {"prompts": len(rows)} | {status: statuses[status] for status in ("mined", "skipped", "failed")}
    if kind == "ratio":
        return shown | {"rows": totals["rows"]}
    found = totals["mismatches"]
    share, cost = (100 * totals["important"] / found, totals["target_tokens"] / found) if found else (0, 0)
    return shown | {"mismatches": found, "important": f"{share:.1f} %", "target tokens per mismatch": f"{cost:.1f}"}
