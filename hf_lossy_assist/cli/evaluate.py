"""``lossy-assist evaluate``: every mode's score on a task, and its speed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from transformers.utils.logging import disable_progress_bar

from .. import tasks
from ..errors import LossyValueError
from ..evaluation.answers import AnswerStore
from ..evaluation.evaluate import Evaluation, EvaluationResult, named_modes, reference_of
from ..evaluation.modes import DecodingMode, parse_gamma
from ..evaluation.tables import length_table, score_table
from ..integrations.vllm.engines import VllmEngines, vllm_engines
from ..store.process import this_process
from .console import limit_threads, progress
from .models import ModelOptions
from .options import (
    RULES,
    DraftDtype,
    FirstSeed,
    GammaOrAuto,
    Prepack,
    PromptLookup,
    RuleHeads,
    Sample,
    TaskData,
    TaskName,
    TaskOptions,
    Temperature,
    Threads,
    VllmPython,
    parse_task_options,
)

COMMAND_OPTIONS = {"epilog": RULES}


@dataclass(frozen=True)
class EvaluationOptions(ModelOptions):
    """The options that ``evaluate`` and ``calibrate`` share."""

    folder: Annotated[Path | None, typer.Option(help="Folder with the pair's `target` and `draft` to use.")] = None
    task: TaskName = None
    data: TaskData = None
    task_option: TaskOptions = None
    reference: Annotated[
        str | None, typer.Option(help="The mode to compare with; plain, else lossless by default.")
    ] = None
    head: RuleHeads = None
    split: Annotated[str, typer.Option(help="The task's split.")] = "test"
    gamma: GammaOrAuto = "5"
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Longest response; the task's by default.")] = None
    sample: Sample = False
    temperature: Temperature = 0.9
    seed: FirstSeed = 0
    draft_dtype: DraftDtype = None
    prepack: Prepack = False
    threads: Threads = None
    engine: Annotated[str, typer.Option(help="hf: generate(); vllm: vLLM.")] = "hf"
    vllm_python: VllmPython = None

    @cached_property
    def vllm(self) -> VllmEngines | None:
        """What decodes instead of this process."""
        if self.engine not in ("hf", "vllm"):
            raise LossyValueError(f"`--engine` has to be 'hf' or 'vllm', but is {self.engine!r}")
        return vllm_engines(self.engine == "vllm", self.vllm_python, self.threads)

    def modes(self, text: str) -> list[DecodingMode]:
        gamma = self.prompt_lookup or parse_gamma("--gamma", self.gamma)
        listed = named_modes(text, gamma, self.temperature if self.sample else None)
        return listed if self.vllm is None else self.vllm.modes(listed)

    def evaluation(self, modes: Sequence[DecodingMode], limit: int, assisted: bool = False, **more: Any) -> Evaluation:
        """Load what the options name; ``assisted`` requires a draft even if no mode uses it."""
        limit_threads(self.threads)
        self.check({} if self.pair else {"--task": self.task}, () if assisted else ("--assistant",))
        lookup = self.prompt_lookup is not None
        for mode in modes:
            mode.check_draft(model=not lookup and bool(self.assistant or self.pair), lookup=lookup)
        task = self.task and tasks.load(self.task, self.data, **parse_task_options(self.task_option or ()))
        loaded = self.load_for_task(task, self.head or ())
        return Evaluation(
            replace(loaded.models, lookup=lookup), loaded.tokenizer, loaded.task, modes,
            self.reference or reference_of(modes), limit, self.split, max_new_tokens=self.max_new_tokens,
            seed=self.seed, process=this_process(), **more,
        )  # fmt: skip


def evaluate(
    shared: EvaluationOptions,
    prompt_lookup: PromptLookup = None,
    modes: Annotated[
        str | None,
        typer.Option(
            help="plain,draft,stock,everything,RULE[+RULE][@GAMMA][:KEY=VALUE…],…; plain,lossless,topk,dropmatch by "
            "default."
        ),
    ] = None,
    measure: Annotated[
        str,
        typer.Option(
            help="task: its score; rouge: ROUGE-L to the reference's text; likelihood: mean of the target's p."
        ),
    ] = "task",
    limit: Annotated[int, typer.Option(min=1, help="Number of problems; a repeated command may raise it.")] = 100,
    batch_size: Annotated[int, typer.Option(min=1, help="Problems that are answered together.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results; an interrupted run continues there.")
    ] = None,
) -> None:
    """Let every mode answer the same problems: scores with paired differences, tokens kept, and speed.

    OUT gets results.jsonl (a line per problem and mode), summary.json and plot.png. `accelerate launch -m
    hf_lossy_assist evaluate …` splits the problems over processes.
    """
    disable_progress_bar()
    usual = ["plain", "lossless", "topk", "dropmatch" if prompt_lookup is None else "dropmatch:criterion=naive"]
    shared = replace(shared, prompt_lookup=prompt_lookup)
    listed = shared.modes(modes or ",".join(usual))
    evaluation = shared.evaluation(listed, limit, batch_size=batch_size, measure=measure)
    screen = Console()
    with shared.vllm or nullcontext():
        result = answer_all(evaluation, AnswerStore() if out is None else AnswerStore(out, evaluation.plan()), screen)
    if out is None or len(result.answers) == len(listed) * len(evaluation.examples):
        screen.print(score_table(result.modes.values(), evaluation.reference))
        screen.print(length_table(result.modes.values(), evaluation.reference))
    if out is not None:
        screen.print(f"written: {out}", style="dim", soft_wrap=True)


def answer_all(evaluation: Evaluation, store: AnswerStore, screen: Console) -> EvaluationResult:
    """Run an evaluation with a progress display, and save the result if the store has a folder."""
    process = evaluation.process
    shown = screen if process.number == 0 else Console(quiet=True)
    bar = progress(shown)
    task = bar.add_task("answering", total=len(evaluation.own_batches))
    done = 0
    try:
        with Live(bar, console=shown, transient=True, refresh_per_second=2) as live:
            for done, _ in enumerate(evaluation.run(store), 1):
                bar.update(task, completed=-(-done // evaluation.batch_size))
                if shown.is_terminal:
                    running = evaluation.result(store).modes.values()
                    live.update(Group(bar, score_table(running, evaluation.reference)))
    except KeyboardInterrupt:
        kept = "" if store.folder is None else f"; repeat the command to continue from {store.folder}"
        screen.print(f"stopped after {done} problems{kept}", soft_wrap=True)
        raise typer.Exit(130) from None
    return evaluation.finish(store)
