"""``lossy-assist evaluate``: every mode's score on a task, and its speed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live

from ..errors import LossyValueError
from ..evaluation.answers import AnswerStore
from ..evaluation.evaluate import Evaluation, EvaluationResult, named_modes, reference_of
from ..evaluation.modes import DecodingMode, with_noise
from ..evaluation.tables import score_table
from ..integrations.vllm.engines import VllmEngines, vllm_engines
from ..store.process import this_process
from .console import Console, progress
from .models import TaskDecodingOptions
from .options import (
    Gamma,
    Modes,
    PromptLookup,
    VllmPython,
)


@dataclass(frozen=True)
class EvaluationOptions(TaskDecodingOptions):
    """The options that ``evaluate`` and ``calibrate`` share."""

    reference: Annotated[
        str | None, typer.Option(help="The mode to compare with; plain, else lossless by default.")
    ] = None
    gamma: Gamma = "5"
    engine: Annotated[str, typer.Option(help="hf: generate(); vllm: vLLM.")] = "hf"
    vllm_python: VllmPython = None

    @cached_property
    def vllm(self) -> VllmEngines | None:
        """What decodes instead of this process."""
        if self.engine not in ("hf", "vllm"):
            raise LossyValueError(f"`--engine` has to be 'hf' or 'vllm', but is {self.engine!r}")
        return vllm_engines(self.engine == "vllm", self.vllm_python, self.threads)

    def listed(self, text: str) -> list[DecodingMode]:
        listed = named_modes(text, self.prompt_lookup or self.drafted, self.warmth)
        listed = [replace(mode, top_p=self.top_p) for mode in listed]
        return listed if self.vllm is None else self.vllm.modes(listed)

    def evaluation(self, modes: Sequence[DecodingMode], limit: int, assisted: bool = False, **more: Any) -> Evaluation:
        """Load models and task as the options say; ``assisted`` requires a draft even if no mode uses it."""
        self.check({} if self.pair else {"--task": self.task}, () if assisted else ("--assistant",))
        lookup = self.prompt_lookup is not None
        for mode in modes:
            mode.check_draft(model=not lookup and bool(self.assistant or self.pair), lookup=lookup)
        loaded = self.load_for_task(self.own_task()).with_heads(self.head)
        return Evaluation(
            replace(loaded.models, lookup=lookup), loaded.tokenizer, loaded.task, modes,
            self.reference or reference_of(modes), limit, self.split, max_new_tokens=self.max_new_tokens,
            seed=self.seed or 0, process=this_process(), **more,
        )  # fmt: skip


@dataclass(frozen=True)
class EvaluateOptions(EvaluationOptions):
    """The options of ``evaluate``."""

    prompt_lookup: PromptLookup = None
    modes: Modes = None
    measure: Annotated[
        str,
        typer.Option(
            help="task: its score; rouge: ROUGE-L to the reference's text; likelihood: the target's p, geometric mean."
        ),
    ] = "task"
    limit: Annotated[int, typer.Option(min=1, help="Number of problems; a repeated command may raise it.")] = 100
    batch_size: Annotated[int, typer.Option(min=1, help="Problems that are answered together.")] = 1
    costs: Annotated[bool, typer.Option(help="Measure what rounds cost, for the predicted seconds of an answer.")] = (
        True
    )
    noise_floor: Annotated[
        bool, typer.Option("--noise-floor", help="Add what rounding alone does: the target in another batch and dtype.")
    ] = False
    out: Annotated[Path | None, typer.Option(help="Folder for the results; an interrupted run continues there.")] = None


def evaluate(options: EvaluateOptions) -> None:
    """Let every mode answer the same problems: scores with paired differences, tokens kept, and speed.

    Without --modes, the target alone, lossless, min_p and regret answer. OUT gets results.jsonl (a line per problem
    and mode), summary.json and plot.png. `accelerate launch -m hf_lossy_assist evaluate …` splits the problems over
    processes.
    """
    out = options.out
    if options.noise_floor and options.engine == "vllm":
        raise LossyValueError("`--noise-floor` is of the engine hf; leave it or `--engine vllm` out")
    listed = options.listed(options.modes or "plain,lossless,min_p,regret")
    if options.noise_floor:
        listed = with_noise(listed, options.drafted, dtype=not options.prepack)
    evaluation = options.evaluation(listed, options.limit, batch_size=options.batch_size, measure=options.measure)
    screen = Console()
    with options.vllm or nullcontext():
        store = AnswerStore() if out is None else AnswerStore(out, evaluation.plan())
        result = answer_all(evaluation, store, screen)
    if options.costs:
        with progress(screen) as bar:
            evaluation.measure_costs(store, lambda turns: bar.track(turns, description="timing"))
        result = evaluation.finish(store)
    if out is None or len(result.answers) == len(listed) * len(evaluation.examples):
        for one in result.tables:
            screen.print(one)
    if out is not None:
        screen.print(f"written: {out}", style="dim", soft_wrap=True)


def answer_all(evaluation: Evaluation, store: AnswerStore, screen: Console) -> EvaluationResult:
    """Run an evaluation with a progress display, and save the result if the store has a folder."""
    process = evaluation.process
    shown = screen if process.number == 0 else Console(quiet=True)
    bar = progress(shown)
    task = bar.add_task("problems answered", total=sum(map(len, evaluation.own_batches.values())))
    done = 0
    try:
        with Live(bar, console=shown, transient=True, refresh_per_second=2) as live:
            for done, _ in enumerate(evaluation.run(store), 1):
                bar.update(task, completed=done)
                if shown.is_terminal:
                    running = evaluation.result(store).modes.values()
                    live.update(Group(bar, score_table(running, evaluation.reference)))
    except KeyboardInterrupt:
        kept = "" if store.folder is None else f"; repeat the command to continue from {store.folder}"
        screen.print(f"stopped after {done} problems{kept}", soft_wrap=True)
        raise typer.Exit(130) from None
    return evaluation.finish(store)
