"""``lossy-assist bench``: plain, stock assisted, lossless and lossy generation, side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import Progress
from transformers import PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from ..acceptors import REGISTRY
from ..config import head_type
from ..errors import LossyUnsupportedError, LossyValueError
from ..evaluation import records
from ..evaluation.comparison import run_comparison, texts_of, warm_up
from ..evaluation.meters import CLOCKS, Clock, energy_counter, machine
from ..evaluation.modes import DecodingMode, Models, usual_modes
from ..evaluation.plots import plot
from ..evaluation.quality import Quality, judge, qualities
from ..evaluation.requests import Instruments, PromptBatch, batches_of, run_request
from ..evaluation.roofline import Cost, Roofline, measure_rates
from ..evaluation.summary import summarise
from . import bench_report
from .console import limit_threads, progress
from .models import LoadedModels, ModelOptions, load_heads
from .options import RULES, Device, DraftSource, FirstSeed, Sample, TargetSource, Threads, parse_gamma, parse_modes

DTYPES = ("float32", "bfloat16", "float16")
_DEFAULT_LENGTH = 100

COMMAND_OPTIONS = {"epilog": RULES}


@dataclass(frozen=True)
class Preparation:
    """A change of models before they are timed, for commands that put ``bench`` behind options of their own."""

    # Returns the models that are timed; answers are judged of those that were loaded where ``--accuracy-problems`` asks
    # for more of them.
    change: Callable[[Models], Models] = lambda models: models
    settings: Mapping[str, Any] = field(default_factory=dict)  # how the records describe the change


def bench(
    context: typer.Context,
    pair: Annotated[str | None, typer.Option(help="A bundled pair; 'arithmetic' unless there is a --model.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Folder with the pair's `target` and `draft` to use.")] = None,
    model: TargetSource = None,
    assistant: DraftSource = None,
    head: Annotated[
        list[str] | None, typer.Option(metavar="RULE=SOURCE", help="A trained head, e.g. judge=FOLDER. Repeatable.")
    ] = None,
    modes: Annotated[
        str | None,
        typer.Option(help="plain,stock,RULE[+RULE][@GAMMA][:KEY=VALUE…],…; all that can run by default."),
    ] = None,
    gamma: Annotated[str, typer.Option(help="Drafted tokens per round, or 'auto'.")] = "5",
    prompts: Annotated[int, typer.Option(min=1, help="How many prompts.")] = 8,
    prompt_file: Annotated[Path | None, typer.Option(help="One prompt a line, instead of the task's own.")] = None,
    prompt_length: Annotated[
        int | None, typer.Option(min=1, help="Bring every prompt to so many tokens; answers are not judged then.")
    ] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Longest response.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Prompts answered together.")] = 1,
    repeats: Annotated[int, typer.Option(min=1, help="How often speed is measured.")] = 3,
    accuracy_problems: Annotated[
        int | None, typer.Option(min=1, help="Judge so many answers, instead of those that are timed.")
    ] = None,
    sample: Sample = False,
    temperature: Annotated[float, typer.Option(help="Temperature, with --sample.")] = 0.9,
    seed: FirstSeed = 0,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    device: Device = "cpu",
    threads: Threads = None,
    clock: Annotated[
        str, typer.Option(help="wall; or cpu, the time this process computes: for one thread on a busy machine.")
    ] = "wall",
    roofline: Annotated[bool, typer.Option(help="Measure the machine, and compare with what it could do.")] = True,
    out: Annotated[Path | None, typer.Option(help="Folder for bench.jsonl and bench.png.")] = None,
) -> None:
    """Compare plain, stock assisted, lossless and lossy generation: speed, where the time goes, accuracy, memory.

    All modes answer a prompt before the next one is put, each in turn first, so that noise hits all alike.
    """
    limit_threads(threads)
    disable_progress_bar()
    if dtype not in DTYPES:
        raise LossyValueError(f"`--dtype` has to be one of {list(DTYPES)}, but is {dtype!r}")
    if clock not in CLOCKS or (clock == "cpu" and (device != "cpu" or torch.get_num_threads() > 1)):
        raise LossyValueError(
            f"`--clock` has to be one of {list(CLOCKS)}, cpu only with `--threads 1`, but is {clock!r}"
        )
    where, screen, warmth = torch.device(device), Console(), temperature if sample else None
    drafted = parse_gamma("--gamma", gamma)
    chosen = None if modes is None else parse_modes(modes, drafted, warmth)
    loaded, models, preparation = _load(
        context, ModelOptions(pair, model, assistant, dtype, device, folder), head or (), prompt_file
    )
    examples, pad = loaded.examples(prompts), loaded.tokenizer.pad_token_id
    length = max_new_tokens or (_DEFAULT_LENGTH if loaded.task is None else loaded.task.max_new_tokens)
    batches = batches_of(loaded.encode(examples), batch, device=where, pad=pad, length=prompt_length, seed=seed)
    able, notes = _able(chosen, models, drafted, warmth, batches[0], length)
    settings = {
        "models": {"target": _size(models.target), "draft": _size(models.draft)}, **preparation.settings,
        "dtype": dtype, "gamma": gamma, "batch": batch, "clock": clock, "prompts": len(examples),
        "prompt_length": prompt_length, "repeats": repeats, "seed": seed, "temperature": warmth,
        "max_new_tokens": length,
    }  # fmt: skip
    origin = records.provenance(where, **machine(where), **settings)
    path = None if out is None else out / "bench.jsonl"
    with progress(screen) as bar, records.written(path, origin) as write, energy_counter(where) as (energy, why):
        requests, responses = run_comparison(
            models, able, batches, length, repeats=repeats, instruments=Instruments(CLOCKS[clock], energy),
            track=bar.track, write=write,
        )  # fmt: skip
        texts = {label: texts_of(answers) for label, answers in responses.items()}
        marks: list[Quality] = []
        if loaded.task is not None and prompt_length is None:
            judged, said = examples, texts
            if accuracy_problems is not None:
                judged = loaded.examples(accuracy_problems)
                put = batches_of(loaded.encode(judged), batch, device=where, pad=pad, seed=seed)
                said = {mode.label: _answers(bar, loaded.models, mode, put, length) for mode in able}
            right = {label: judge(loaded.tokenizer, loaded.task, judged, own) for label, own in said.items()}
            marks = qualities(right, bench_report.reference(able))
        limit = None
        if roofline:
            response = sum(r.tokens for r in requests) / len(requests) / batch
            limit, refusals = _limit(models, batches, response, batch, CLOCKS[clock])
            notes += refusals
        rows = summarise(able, requests, None if sample else texts, batch, limit)
        for row in (*([limit] if limit else []), *rows, *marks):
            write(row)
    bench_report.show(screen, rows, marks, limit, origin, [*notes, why])
    if out is not None:
        plot(*bench_report.picture(rows, marks), out / "bench.png", bench_report.title(origin), bottom=0)
        screen.print(f"written: {path}, {out / 'bench.png'}", style="dim", soft_wrap=True)


def _load(
    context: typer.Context, options: ModelOptions, heads: list[str], prompt_file: Path | None
) -> tuple[LoadedModels, Models, Preparation]:
    if options.model is None and options.assistant is None:
        options = replace(options, pair=options.pair or "arithmetic")
    options.check()
    loaded = options.load().asked("--prompt-file", prompt_file)
    loaded = replace(loaded, heads={**loaded.heads, **load_heads(heads, options.device)})
    preparation = context.obj or Preparation()
    return loaded, preparation.change(loaded.models), preparation


def _able(
    chosen: list[DecodingMode] | None, models: Models, gamma: int | str, temperature: float | None,
    batch: PromptBatch, max_new_tokens: int,
) -> tuple[list[DecodingMode], list[str]]:  # fmt: skip
    everything = [
        DecodingMode(temperature=temperature),
        DecodingMode.stock(gamma, temperature),
        *usual_modes(models.heads, gamma, temperature),
    ]
    wanted = chosen or everything
    for mode in wanted:
        for rule in mode.rules:
            if head_type(REGISTRY[rule]) is not None and rule not in models.heads:
                raise LossyValueError(f"`--modes` has {mode.label!r}, which needs a head; add `--head {rule}=SOURCE`")
    labels = [mode.label for mode in wanted]
    if len(set(labels)) < len(labels):
        raise LossyValueError(f"`--modes` has to name every mode once, but is {labels}")
    return warm_up(models, wanted, batch, max_new_tokens, strict=chosen is not None)


def _answers(
    bar: Progress, models: Models, mode: DecodingMode, batches: list[PromptBatch], max_new_tokens: int
) -> list[list[int]]:
    shown = bar.track(batches, description=f"judging {mode.label}")
    return texts_of(run_request(models, mode, batch, max_new_tokens) for batch in shown)


def _limit(
    models: Models, batches: list[PromptBatch], tokens: float, size: int, clock: Clock
) -> tuple[Roofline | None, list[str]]:
    """Measure the machine, for contexts as long as half a response makes them."""
    prompts = [int(row.sum()) for batch in batches for row in batch.mask]
    try:
        costs = Cost.of(models.target), Cost.of(models.draft)
    except LossyUnsupportedError as error:
        return None, [f"no roofline: {error}"]
    rates = measure_rates(models.target, clock), measure_rates(models.draft, clock)
    return Roofline(*costs, *rates, round(sum(prompts) / len(prompts) + tokens / 2), size), []


def _size(model: PreTrainedModel) -> dict[str, Any]:
    config = model.config.get_text_config(decoder=True)
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size")
    sizes = {name: getattr(config, name) for name in names if hasattr(config, name)}
    return {"parameters": sum(p.numel() for p in model.parameters()), **sizes}
