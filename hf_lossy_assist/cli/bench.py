"""``lossy-assist bench``: plain, stock assisted, lossless and lossy generation, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from transformers import PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from ..bench import records
from ..bench.contenders import Contender, Models, field_of_all
from ..bench.geometry import Geometry, parse_geometry
from ..bench.matchup import warm_up
from ..bench.meters import CLOCKS
from ..bench.plots import plot_speed
from ..bench.resources import energy_counter, machine
from ..bench.trials import Batch, Instruments, Workload
from ..errors import LossyValueError
from ..pairs import evaluation
from . import bench_report
from .bench_cast import DTYPES, batches_of, grow_models, load_cast, needs_head, parse_contenders, parse_gamma
from .bench_match import Match, hold
from .console import console, limit_threads, progress

_DEFAULT_LENGTH = 100


def bench(
    pair: Annotated[str | None, typer.Option(help="A bundled pair; 'arithmetic' unless there is a --model.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Folder with the pair's `target` and `draft` to use.")] = None,
    model: Annotated[str | None, typer.Option(help="The target: a folder or a Hub id.")] = None,
    assistant: Annotated[str | None, typer.Option(help="The draft: a folder or a Hub id.")] = None,
    head: Annotated[
        list[str] | None, typer.Option(metavar="RULE=SOURCE", help="A trained head, e.g. judge=FOLDER. Repeatable.")
    ] = None,
    grow: Annotated[
        str | None,
        typer.Option(help="Pad the target to llama-1b, -3b, -8b, -70b, or sizes: layers=12,hidden=1024,heads=16."),
    ] = None,
    grow_draft: Annotated[str | None, typer.Option(help="The same for the draft.")] = None,
    modes: Annotated[
        str | None,
        typer.Option(help="plain,stock,RULE[+RULE][@GAMMA][:KEY=VALUE…],…; everybody who can by default."),
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
        int | None, typer.Option(min=1, help="Judge so many answers, of the models before they were grown.")
    ] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Draw tokens instead of taking the likeliest.")] = False,
    temperature: Annotated[float, typer.Option(help="Temperature, with --sample.")] = 0.9,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first prompt; the next has the next one.")] = 0,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    device: Annotated[str, typer.Option(help="Where both models run.")] = "cpu",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; torch's choice by default.")] = None,
    clock: Annotated[
        str, typer.Option(help="wall; or cpu, the time this process computes: for one thread on a busy machine.")
    ] = "wall",
    roofline: Annotated[bool, typer.Option(help="Measure the machine, and compare with what it could do.")] = True,
    out: Annotated[Path | None, typer.Option(help="Folder for bench.jsonl and bench.png.")] = None,
) -> None:
    """Compare plain, stock assisted, lossless and lossy generation: speed, where the time goes, accuracy, memory.

    Everybody answers a prompt before the next one is put. With --grow the target is padded to the sizes of a large
    model and computes what it computed before: the cost is the large model's, and every decision a real one.
    """
    limit_threads(threads)
    disable_progress_bar()
    if dtype not in DTYPES:
        raise LossyValueError(f"`--dtype` has to be one of {list(DTYPES)}, but is {dtype!r}")
    if clock not in CLOCKS or (clock == "cpu" and (device != "cpu" or torch.get_num_threads() > 1)):
        raise LossyValueError(
            f"`--clock` has to be one of {list(CLOCKS)}, cpu only with `--threads 1`, but is {clock!r}"
        )
    where, precision, screen = torch.device(device), DTYPES[dtype], console()
    drafted = parse_gamma("--gamma", gamma)
    chosen = None if modes is None else parse_contenders(modes, drafted)
    sizes = [
        Geometry() if text is None else parse_geometry(text, option)
        for option, text in (("--grow", grow), ("--grow-draft", grow_draft))
    ]
    cast = load_cast(
        pair=pair, folder=folder, model=model, assistant=assistant, heads=head or (), prompt_file=prompt_file,
        dtype=precision, device=where,
    )  # fmt: skip
    models = grow_models(cast.models, *sizes, precision, where)
    workload = Workload(
        max_new_tokens=max_new_tokens or (_DEFAULT_LENGTH if cast.task is None else evaluation.MAX_NEW_TOKENS),
        temperature=temperature if sample else None,
        seed=seed,
    )
    examples = cast.examples(prompts)
    batches = batches_of(cast.encode(examples), batch, prompt_length, cast.tokenizer.pad_token_id or 0, where)
    contenders, notes = _contenders(chosen, models, drafted, batches[0], workload)
    match = Match(
        cast=cast, models=models, contenders=contenders, examples=examples, batches=batches, workload=workload,
        batch=batch, repeats=repeats, judged=cast.task is not None and prompt_length is None,
        accuracy_problems=accuracy_problems,
    )  # fmt: skip
    settings = {
        "models": {"target": _size(models.target), "draft": _size(models.draft)}, "grow": grow,
        "grow_draft": grow_draft, "dtype": dtype, "gamma": gamma, "batch": batch, "clock": clock,
        "prompts": len(examples), "prompt_length": prompt_length, "repeats": repeats, "seed": seed,
        "temperature": workload.temperature, "max_new_tokens": workload.max_new_tokens,
    }  # fmt: skip
    origin = records.provenance(where, **machine(where), **settings)
    path = None if out is None else out / "bench.jsonl"
    with progress(screen) as bar, records.written(path, origin) as write, energy_counter(where) as (energy, why):
        instruments = Instruments(CLOCKS[clock], energy)
        results = hold(match, bar, write, instruments, with_roofline=roofline)
    bench_report.show(screen, results, origin, [*notes, *results.notes, why])
    if out is not None:
        points, xlabel = bench_report.points(results)
        plot_speed(points, xlabel, bench_report.title(origin), out / "bench.png")
        screen.print(f"written: {path}, {out / 'bench.png'}", style="dim", soft_wrap=True)


def _contenders(
    chosen: list[Contender] | None, models: Models, gamma: int | str, batch: Batch, workload: Workload
) -> tuple[list[Contender], list[str]]:
    wanted = chosen or field_of_all(models, gamma, workload.do_sample)
    for contender in wanted:
        if (rule := needs_head(contender, models)) is not None:
            raise LossyValueError(f"`--modes` has {contender.label!r}, which needs a head; add `--head {rule}=SOURCE`")
    labels = [contender.label for contender in wanted]
    if len(set(labels)) < len(labels):
        raise LossyValueError(f"`--modes` has to name everybody once, but is {labels}")
    return warm_up(models, wanted, batch, workload, strict=chosen is not None)


def _size(model: PreTrainedModel) -> dict[str, Any]:
    config = model.config.get_text_config(decoder=True)
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size")
    sizes = {name: getattr(config, name) for name in names if hasattr(config, name)}
    return {"parameters": sum(p.numel() for p in model.parameters()), **sizes}
