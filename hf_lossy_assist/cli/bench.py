"""``lossy-assist bench``: plain, assisted, lossless and lossy generation side by side."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import Progress
from transformers import PreTrainedModel

from ..errors import LossyValueError
from ..evaluation import records
from ..evaluation.answers import AnswerStore, differences, problem_sum
from ..evaluation.comparison import RequestRecord, first_answers, run_comparison, summarise, warm_up
from ..evaluation.costs import costs_of, lengths_between
from ..evaluation.evaluate import Evaluation, described, reference_of
from ..evaluation.meters import CLOCKS, energy_counter, machine
from ..evaluation.modes import DecodingMode, Models, parse_modes, usual_modes
from ..evaluation.quality import ModeScore
from ..evaluation.requests import Ending, Instruments, batches_of
from ..evaluation.tables import plot
from ..heads import ModelIdentity
from ..integrations.vllm.engines import vllm_engines, vllm_has
from ..store.folder import refuse
from . import bench_report
from .console import Console, progress
from .models import TaskDecodingOptions, default_device
from .options import Gamma, Modes, PromptFile, VllmPython

ENGINES = ("hf", "stock", "vllm")
EVERY_RULE = "all"
_QUICK = ("lossless", "dropmatch", "ears", "typical", "regret", "judge", "min_p")
"""The rules without ``--modes``, as far as they work and can change anything: a check that takes about a minute."""


@dataclass(frozen=True)
class Preparation:
    """A change of models before they are timed, for commands that wrap ``bench``."""

    # With ``--accuracy-problems``, the unchanged models answer.
    change: Callable[[Models], Models] = lambda models: models
    settings: Mapping[str, Any] = field(default_factory=dict)  # describes the change in the records


@dataclass(frozen=True)
class BenchOptions(TaskDecodingOptions):
    """The options of ``bench``."""

    modes: Modes = None
    gamma: Gamma = "5"
    engines: Annotated[
        str,
        typer.Option(
            help="hf: generate(); stock: transformers' assisted generation, too; vllm: the same modes in vLLM."
        ),
    ] = "hf"
    vllm_python: VllmPython = None
    prompts: Annotated[int, typer.Option(min=1, help="How many prompts.")] = 8
    prompt_file: PromptFile = None
    prompt_length: Annotated[
        int | None, typer.Option(min=1, help="Cut or repeat every prompt to this length; turns off scores.")
    ] = None
    batch: Annotated[int, typer.Option(min=1, help="Prompts answered together.")] = 1
    repeats: Annotated[int, typer.Option(min=1, help="How often speed is measured.")] = 3
    accuracy_problems: Annotated[
        int | None, typer.Option(min=1, help="Score answers to so many problems instead of the timed ones.")
    ] = None
    clock: Annotated[
        str, typer.Option(help="wall, or cpu: this process's computing time, for one thread on a busy machine.")
    ] = "wall"
    out: Annotated[
        Path | None, typer.Option(help="Folder for bench.jsonl and bench.png; an interrupted run goes on there.")
    ] = None

    def check(self, others: Mapping[str, Any] | None = None, optional: Collection[str] = ()) -> None:
        names, device = self.engines.split(","), self.device or default_device()
        if unknown := [name for name in names if name not in ENGINES]:
            raise LossyValueError(f"`--engines` has to name {list(ENGINES)}, but one is {unknown[0]!r}")
        if self.clock not in CLOCKS or (self.clock == "cpu" and (device != "cpu" or self.threads != 1)):
            raise LossyValueError(
                f"`--clock` has to be one of {list(CLOCKS)}, cpu only with `--threads 1`, but is {self.clock!r}"
            )
        super().check(others, optional)

    def chosen(self) -> list[DecodingMode] | None:
        """Return the modes that are asked for; None for those that work, of a few or of all."""
        if (self.engines == "hf" and self.modes is None) or self.modes == EVERY_RULE:
            if "vllm" in self.engines:
                raise LossyValueError(
                    f"`--modes` all has no modes for vllm, but `--engines` is {self.engines!r}; name them"
                )
            return None
        chosen = parse_modes(self.modes or "plain,lossless", self.drafted, self.warmth)
        if self.engines != "hf" and not any(mode.rule is None and mode.gamma is not None for mode in chosen):
            chosen.append(DecodingMode.stock(self.drafted, self.warmth))
        return chosen


def bench(context: typer.Context, options: BenchOptions) -> None:
    """Compare plain, assisted, lossless and lossy generation: speed, where the time goes, accuracy, memory.

    Without --modes, a few rules are compared, in about a minute on the pair arithmetic, which is there without models,
    too; `--modes all` takes every rule that can change anything. All modes answer a prompt before any answers the next,
    and take turns in going first, so noise affects all alike. Seconds are also predicted, from an answer's own rounds
    and what a round costs here.
    """
    if options.model is None and options.assistant is None:
        options = replace(options, pair=options.pair or "arithmetic")
    elif options.pair is None:
        options = replace(options, dtype=options.dtype or "float32")
    options.check()
    names, batch, repeats, out = options.engines.split(","), options.batch, options.repeats, options.out
    screen, seed, warmth = Console(), options.seed or 0, options.warmth
    vllm = vllm_engines("vllm" in names, options.vllm_python, options.threads)
    chosen = options.chosen()
    loaded = options.load(options.own_task()).asked("--prompt-file", options.prompt_file).with_heads(options.head)
    preparation = context.obj or Preparation()
    models, where = preparation.change(loaded.models), loaded.target.device
    source, length = loaded.task or loaded.prompts, options.max_new_tokens or loaded.length
    examples = source.examples(options.split, options.prompts)
    prompts = loaded.encode(examples)
    batches = batches_of(
        prompts, batch, device=where, pad=loaded.tokenizer.pad_token_id, length=options.prompt_length, seed=seed,
        ending=Ending.of(source, loaded.tokenizer),
    )  # fmt: skip
    settings = {
        "models": {"target": _size(models.target), "draft": _size(models.draft)}, **preparation.settings,
        "dtype": str(models.target.dtype).removeprefix("torch."), "prompts": len(examples), "seed": seed,
        "temperature": warmth, "max_new_tokens": length,
        **{name: getattr(options, name) for name in (
            "draft_dtype", "prepack", "engines", "gamma", "batch", "clock", "prompt_length", "repeats", "top_p",
        )},
        "problems": [problem_sum(ids, one.answer) for ids, one in zip(prompts, examples, strict=True)],
    }  # fmt: skip
    path = None if out is None else out / "bench.jsonl"
    with ExitStack() as stack:
        if vllm is not None:
            of_vllm = stack.enter_context(vllm).modes(mode for mode in chosen if vllm_has(mode))
            chosen = [*(chosen if "hf" in names else ()), *of_vllm]
        wanted, clock = _wanted(chosen, models, options), CLOCKS[options.clock]
        settings["modes"] = described(wanted, models.heads)
        origin = records.provenance(where, **machine(where), **settings)
        known = _known(path, origin)
        able, notes = warm_up(models, wanted, batches[0], length, strict=chosen is not None)
        bar, write = stack.enter_context(progress(screen)), stack.enter_context(records.written(path, origin, known))
        energy, why = stack.enter_context(energy_counter(where))
        requests = run_comparison(
            models, able, batches, length, repeats=repeats, instruments=Instruments(clock, energy), track=bar.track,
            write=write, known=known,
        )  # fmt: skip
        costs = {} if batch > 1 else costs_of(
            models, able, max(prompts, key=len), lengths_between(requests),
            lambda turns: bar.track(turns, description="timing"), clock,
        )  # fmt: skip
        marks: list[ModeScore] = []
        compared = bench_report.reference(able) or reference_of(able)
        if loaded.task is not None and options.prompt_length is None:
            evaluation = Evaluation(
                loaded.models, loaded.tokenizer, loaded.task, able, compared,
                options.accuracy_problems or len(examples), options.split, batch_size=batch, max_new_tokens=length,
                seed=seed,
            )  # fmt: skip
            said = {mode.label: first_answers(requests, mode.label) for mode in able}
            marks = _scores(bar, evaluation, {} if options.accuracy_problems else said)
        rows = summarise(able, requests, batch, drawn=options.sample, costs=costs)
        for row in (*rows, *marks):
            write(row)
    bench_report.show(screen, rows, marks, compared, origin, [*notes, why])
    if out is not None:
        plot(*bench_report.picture(rows, marks), out / "bench.png", bench_report.title(origin), bottom=0)
        screen.print(f"written: {path}, {out / 'bench.png'}", style="dim", soft_wrap=True)


def _wanted(chosen: list[DecodingMode] | None, models: Models, options: BenchOptions) -> list[DecodingMode]:
    gamma, warmth = options.drafted, options.warmth
    rules = [mode for mode in usual_modes(models.heads, gamma, warmth) if options.modes or mode.rule in _QUICK]
    wanted = chosen or [DecodingMode(temperature=warmth), DecodingMode.stock(gamma, warmth), *rules]
    for mode in wanted:
        mode.check_heads(models.heads)
    labels = [mode.label for mode in wanted]
    if len(set(labels)) < len(labels):
        raise LossyValueError(f"`--modes` has to name every mode once, but is {labels}")
    return [replace(mode, top_p=options.top_p) for mode in wanted]


_FREE = ("argv", "date", "prompts")
"""What may differ between runs that measure the same."""


def _known(path: Path | None, origin: Mapping[str, Any]) -> list[RequestRecord]:
    """Return the requests that an earlier run of the same measurement has made."""
    before, rows = records.read(path)
    if before:
        now = json.loads(json.dumps({"table": before["table"], **origin}))
        refuse(path.parent, differences({"modes": {}, "problems": [], **before}, now, _FREE))
    return [RequestRecord.of(row) for row in rows if row["table"] == RequestRecord.__name__]


def _scores(bar: Progress, evaluation: Evaluation, timed: Mapping[str, Sequence[RequestRecord]]) -> list[ModeScore]:
    """Score the timed requests, or answer the problems if there are none."""
    store = AnswerStore()
    evaluation.take(timed, store)
    for _ in bar.track(evaluation.run(store), total=len(evaluation.examples), description="judging"):
        pass
    return list(evaluation.result(store).modes.values())


def _size(model: PreTrainedModel) -> dict[str, Any]:
    config = model.config.get_text_config(decoder=True)
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size")
    sizes = {name: getattr(config, name) for name in names if hasattr(config, name)}
    sizes["fingerprint"] = ModelIdentity.of(model).fingerprint
    with torch.device("meta"):  # the given one's weights may be packed, or rounded
        parameters = type(model)(model.config).parameters()
    return {"parameters": sum(p.numel() for p in parameters), **sizes}
