"""``lossy-assist bench``: plain, assisted, lossless and lossy generation side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import Progress
from transformers import PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from ..errors import LossyValueError
from ..evaluation import records
from ..evaluation.answers import AnswerStore
from ..evaluation.comparison import run_comparison, summarise, texts_of, warm_up
from ..evaluation.evaluate import Evaluation, reference_of
from ..evaluation.meters import CLOCKS, energy_counter, machine
from ..evaluation.modes import DecodingMode, Models, parse_gamma, parse_modes, usual_modes
from ..evaluation.quality import ModeScore
from ..evaluation.requests import Instruments, PromptBatch, Response, batches_of
from ..evaluation.tables import plot
from ..integrations.vllm.engines import vllm_engines, vllm_has
from . import bench_report
from .console import limit_threads, progress
from .models import LoadedModels, ModelOptions
from .options import (
    PAIRS,
    RULES,
    Device,
    DraftDtype,
    DraftSource,
    FirstSeed,
    GammaOrAuto,
    Prepack,
    RuleHeads,
    Sample,
    TargetSource,
    Temperature,
    Threads,
    VllmPython,
)

ENGINES = ("hf", "stock", "vllm")
DTYPES = ("float32", "bfloat16", "float16")

COMMAND_OPTIONS = {"epilog": RULES}


@dataclass(frozen=True)
class Preparation:
    """A change of models before they are timed, for commands that wrap ``bench``."""

    # With ``--accuracy-problems``, the unchanged models answer.
    change: Callable[[Models], Models] = lambda models: models
    settings: Mapping[str, Any] = field(default_factory=dict)  # describes the change in the records


def bench(
    context: typer.Context,
    pair: Annotated[str | None, typer.Option(help=f"{PAIRS}; arithmetic unless there is a --model.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Folder with the pair's `target` and `draft` to use.")] = None,
    model: TargetSource = None,
    assistant: DraftSource = None,
    head: RuleHeads = None,
    modes: Annotated[
        str | None,
        typer.Option(help="plain,draft,stock,everything,RULE[+RULE][@GAMMA][:KEY=VALUE…],…; all that work by default."),
    ] = None,
    gamma: GammaOrAuto = "5",
    engines: Annotated[
        str,
        typer.Option(
            help="hf: generate(); stock: transformers' assisted generation, too; vllm: the same modes in vLLM."
        ),
    ] = "hf",
    vllm_python: VllmPython = None,
    prompts: Annotated[int, typer.Option(min=1, help="How many prompts.")] = 8,
    prompt_file: Annotated[Path | None, typer.Option(help="One prompt a line, instead of the task's own.")] = None,
    prompt_length: Annotated[
        int | None, typer.Option(min=1, help="Cut or repeat every prompt to this length; turns off scores.")
    ] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Longest response.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Prompts answered together.")] = 1,
    repeats: Annotated[int, typer.Option(min=1, help="How often speed is measured.")] = 3,
    accuracy_problems: Annotated[
        int | None, typer.Option(min=1, help="Score answers to so many problems instead of the timed ones.")
    ] = None,
    sample: Sample = False,
    temperature: Temperature = 0.9,
    seed: FirstSeed = 0,
    dtype: Annotated[
        str | None,
        typer.Option(help="float32, bfloat16 or float16; bfloat16 with --pair qwen-coder, else float32."),
    ] = None,
    draft_dtype: DraftDtype = None,
    prepack: Prepack = False,
    device: Device = "cpu",
    threads: Threads = None,
    clock: Annotated[
        str, typer.Option(help="wall, or cpu: this process's computing time, for one thread on a busy machine.")
    ] = "wall",
    out: Annotated[Path | None, typer.Option(help="Folder for bench.jsonl and bench.png.")] = None,
) -> None:
    """Compare plain, assisted, lossless and lossy generation: speed, where the time goes, accuracy, memory.

    All modes answer a prompt before any answers the next, and take turns in going first, so noise affects all alike.
    """
    limit_threads(threads)
    disable_progress_bar()
    names = engines.split(",")
    if unknown := [name for name in names if name not in ENGINES]:
        raise LossyValueError(f"`--engines` has to name {list(ENGINES)}, but one is {unknown[0]!r}")
    if dtype is not None and dtype not in DTYPES:
        raise LossyValueError(f"`--dtype` has to be one of {list(DTYPES)}, but is {dtype!r}")
    if clock not in CLOCKS or (clock == "cpu" and (device != "cpu" or torch.get_num_threads() > 1)):
        raise LossyValueError(
            f"`--clock` has to be one of {list(CLOCKS)}, cpu only with `--threads 1`, but is {clock!r}"
        )
    where, screen, warmth = torch.device(device), Console(), temperature if sample else None
    drafted, dtype = parse_gamma("--gamma", gamma), dtype or (None if pair is not None else "float32")
    vllm = vllm_engines("vllm" in names, vllm_python, threads)
    chosen = _chosen(modes, names, drafted, warmth)
    loaded, models, preparation = _load(
        context,
        ModelOptions(pair, model, assistant, dtype, device, folder, draft_dtype=draft_dtype, prepack=prepack),
        head or (),
        prompt_file,
    )
    examples, pad = loaded.examples(prompts), loaded.tokenizer.pad_token_id
    length = max_new_tokens or loaded.length
    batches = batches_of(loaded.encode(examples), batch, device=where, pad=pad, length=prompt_length, seed=seed)
    settings = {
        "models": {"target": _size(models.target), "draft": _size(models.draft)}, **preparation.settings,
        "draft_dtype": draft_dtype, "prepack": prepack, "dtype": str(models.target.dtype).removeprefix("torch."),
        "engines": engines, "gamma": gamma, "batch": batch, "clock": clock, "prompts": len(examples),
        "prompt_length": prompt_length, "repeats": repeats, "seed": seed, "temperature": warmth,
        "max_new_tokens": length,
    }  # fmt: skip
    origin = records.provenance(where, **machine(where), **settings)
    path = None if out is None else out / "bench.jsonl"
    with ExitStack() as stack:
        if vllm is not None:
            of_vllm = stack.enter_context(vllm).modes(mode for mode in chosen if vllm_has(mode))
            chosen = [*(chosen if "hf" in names else ()), *of_vllm]
        able, notes = _able(chosen, models, drafted, warmth, batches[0], length)
        bar, write = stack.enter_context(progress(screen)), stack.enter_context(records.written(path, origin))
        energy, why = stack.enter_context(energy_counter(where))
        requests, responses = run_comparison(
            models, able, batches, length, repeats=repeats, instruments=Instruments(CLOCKS[clock], energy),
            track=bar.track, write=write,
        )  # fmt: skip
        texts = {label: texts_of(answers) for label, answers in responses.items()}
        marks: list[ModeScore] = []
        compared = bench_report.reference(able) or reference_of(able)
        if loaded.task is not None and prompt_length is None:
            evaluation = Evaluation(
                loaded.models, loaded.tokenizer, loaded.task, able, compared,
                accuracy_problems or len(examples), batch_size=batch, max_new_tokens=length, seed=seed,
            )  # fmt: skip
            marks = _scores(bar, evaluation, {} if accuracy_problems else responses)
        rows = summarise(able, requests, None if sample else texts, batch)
        for row in (*rows, *marks):
            write(row)
    bench_report.show(screen, rows, marks, compared, origin, [*notes, why])
    if out is not None:
        plot(*bench_report.picture(rows, marks), out / "bench.png", bench_report.title(origin), bottom=0)
        screen.print(f"written: {path}, {out / 'bench.png'}", style="dim", soft_wrap=True)


def _chosen(
    modes: str | None, engines: list[str], gamma: int | str, temperature: float | None
) -> list[DecodingMode] | None:
    """Return the modes that are asked for; None for all that work."""
    if modes is None and engines == ["hf"]:
        return None
    chosen = parse_modes(modes or "plain,lossless", gamma, temperature)
    if engines != ["hf"] and not any(mode.rule is None and mode.gamma is not None for mode in chosen):
        chosen.append(DecodingMode.stock(gamma, temperature))
    return chosen


def _load(
    context: typer.Context, options: ModelOptions, heads: list[str], prompt_file: Path | None
) -> tuple[LoadedModels, Models, Preparation]:
    if options.model is None and options.assistant is None:
        options = replace(options, pair=options.pair or "arithmetic")
    options.check()
    loaded = options.load().asked("--prompt-file", prompt_file).with_heads(heads, options.device)
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
        mode.check_heads(models.heads)
    labels = [mode.label for mode in wanted]
    if len(set(labels)) < len(labels):
        raise LossyValueError(f"`--modes` has to name every mode once, but is {labels}")
    return warm_up(models, wanted, batch, max_new_tokens, strict=chosen is not None)


def _scores(bar: Progress, evaluation: Evaluation, timed: Mapping[str, Sequence[Response]]) -> list[ModeScore]:
    """Score the timed responses, or answer the problems if there are none."""
    store = AnswerStore()
    evaluation.take(timed, store)
    for _ in bar.track(evaluation.run(store), total=len(evaluation.examples), description="judging"):
        pass
    return list(evaluation.result(store).modes.values())


def _size(model: PreTrainedModel) -> dict[str, Any]:
    config = model.config.get_text_config(decoder=True)
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size")
    sizes = {name: getattr(config, name) for name in names if hasattr(config, name)}
    with torch.device("meta"):  # the given one's weights may be packed, or rounded
        parameters = type(model)(model.config).parameters()
    return {"parameters": sum(p.numel() for p in parameters), **sizes}
