"""``lossy-assist mine``: make training data for heads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Column, Table

from .. import tasks
from ..compat import ending_tokens
from ..errors import LossyValueError
from ..evaluation import records
from ..mining.choice import Choice, DraftArgmax, Greedy, GumbelMax
from ..mining.judge_labels import JudgeMiner, SelfLabels
from ..mining.mining_run import MiningPlan, MiningWorkload, longest_prompt, open_run
from ..mining.mining_run import mine as run
from ..mining.prompt_results import FAILED, MINED, SKIPPED, Miner
from ..mining.ratio_labels import RatioMiner
from ..mining.reading import check
from ..mining.rejoining import Rejoining
from ..mining.search import Chosen, UnfinishedSearches
from ..mining.searches import Searches
from ..mining.writing import ApiWriter, LocalWriter, ResponseLimits, Writer
from ..models.quantised import quantize_draft
from ..store.process import this_process
from ..store.shards import ShardStore, prompt_rows
from ..tasks.api_model import ApiModel
from .console import Console, progress
from .models import LoadedModels, ModelOptions
from .options import Prepack, TaskData, TaskName, TaskOptions, parse_task_options

Labels = Literal["judge", "self", "ratio"]

_NEEDS: Mapping[str, tuple[Labels, ...]] = {
    **dict.fromkeys(("mismatches", "only_solved", "look_up", "stop_equal", "task_workers", "writer_dtype"), ("judge",)),
    "features_target": ("judge", "self"),
    "horizon": ("self",),
    "most_lost": ("self",),
    "rows_per_kind": ("ratio",),
}
"""The labels that an option is about, by option."""


@dataclass(frozen=True)
class MiningOptions(ModelOptions):
    """The options of ``mine``, and the miner that they describe."""

    out: Annotated[
        Path | None, typer.Option(help="Folder for the data; the same one continues an interrupted run.")
    ] = None
    task: TaskName = None
    task_data: TaskData = None
    task_option: TaskOptions = None
    unsafe_no_isolation: Annotated[
        bool,
        typer.Option("--unsafe-no-isolation", help="code: run programs without bwrap, with all of your rights."),
    ] = False
    labels: Annotated[
        Labels,
        typer.Option(
            help="judge: which mismatches change the answer; self: which change the target's likelihood of what "
            "follows; ratio: both models' probabilities of drafted tokens."
        ),
    ] = "judge"
    split: Annotated[str, typer.Option(help="Which examples of the task.")] = "train"
    num_prompts: Annotated[int, typer.Option(min=1, help="Number of prompts; a repeated command may raise it.")] = 1000
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts that are mined at once.")] = 32
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest response.")] = 160
    sampling: Annotated[
        bool, typer.Option("--sampling", help="Draw responses, by draws that depend on seed and prefix alone.")
    ] = False
    temperature: Annotated[
        float | None, typer.Option(help="Temperature of draws, 1 by default; needs --sampling or --labels ratio.")
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="Seed of draws.")] = 0
    folds: Annotated[int, typer.Option(min=1, help="Folds that the prompts are dealt into.")] = 5
    mismatches: Annotated[
        int | None, typer.Option(min=1, help="judge: label about this many mismatches of each prompt, drawn by --seed.")
    ] = None
    only_solved: Annotated[
        bool, typer.Option("--only-solved", help="judge: leave out prompts that the target answers wrongly.")
    ] = False
    look_up: Annotated[
        int,
        typer.Option(
            min=0,
            help="judge: once so many tokens in a row equal the old text's, read the rest of the old text at once; 0: "
            "never.",
        ),
    ] = 4
    stop_equal: Annotated[
        int,
        typer.Option(
            min=0, help="judge: after so many equal tokens, take the old text's rest without reading it; 0: never."
        ),
    ] = 0
    features_target: Annotated[
        bool, typer.Option("--features-target", help="judge, self: store the states after the target's tokens too.")
    ] = False
    horizon: Annotated[int, typer.Option(min=1, help="self: compared tokens after a mismatch.")] = 64
    most_lost: Annotated[
        float,
        typer.Option(min=0, help="self: nats per token that what follows may lose at a mismatch that does not matter."),
    ] = 0.5
    rows_per_kind: Annotated[
        int, typer.Option(min=1, help="ratio: drafted tokens per prompt, for each of the four kinds of prefix.")
    ] = 8
    task_workers: Annotated[
        int, typer.Option(min=0, help="judge: threads for tasks that run programs or ask a server; 0: none.")
    ] = 0
    target_api: Annotated[
        str | None, typer.Option(metavar="URL", help="The target is behind this OpenAI-compatible API, …/v1.")
    ] = None
    target_api_model: Annotated[str | None, typer.Option(help="The target's name there.")] = None
    target_api_timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for an answer.")] = 120.0
    writer_dtype: Annotated[
        Literal["int8", "int4"] | None,
        typer.Option(
            help="judge: let a rounded copy of the target write the responses, on a CPU; states are the target's own."
        ),
    ] = None
    prepack: Prepack = False

    def refuse_conflicts(self) -> None:
        """Refuse options that conflict, before anything is loaded."""
        defaults = {each.name: each.default for each in fields(self)}
        for name, kinds in _NEEDS.items():
            if self.labels not in kinds and getattr(self, name) != defaults[name]:
                needed = " or ".join(f"`--labels {kind}`" for kind in kinds)
                raise LossyValueError(f"`{name}` is about {needed}, not {self.labels}; leave it out")
        for name in ("look_up", "stop_equal"):
            if self.target_api is not None and getattr(self, name) != defaults[name]:
                raise LossyValueError(f"`{name}` can't be given with `--target-api`, which writes whole texts")
        if self.task is None and (self.task_data is not None or self._settings):
            raise LossyValueError("`--task-data` and the task's settings are for `--task`; name the task")
        if self.stop_equal and self.sampling:
            # A draw depends on the whole text before it, so the old rest is not what would be drawn.
            raise LossyValueError("`--stop-equal` is for greedy texts; leave out `--sampling`, or `--stop-equal`")
        if self.temperature is not None and not self.draws:
            raise LossyValueError(
                f"`--temperature` counts only with `--sampling`; add it, or leave out {self.temperature}"
            )
        if self.temperature is not None and not self.temperature > 0:
            raise LossyValueError(f"`--temperature` has to be a number > 0, but is {self.temperature}")
        if (self.target_api is None) != (self.target_api_model is None):
            raise LossyValueError("`--target-api` and `--target-api-model` have to be given together")
        if self.target_api is not None and not self.target_api.startswith(("http://", "https://")):
            raise LossyValueError(
                f"`--target-api` has to be a URL like http://localhost:8000/v1, but is {self.target_api!r}"
            )
        if self.target_api is not None and self.draws:
            raise LossyValueError(
                "`--target-api` gives greedy text only: leave out `--sampling`; `--labels ratio` needs `--model`"
            )
        if self.target_api is not None and self.labels == "self":
            raise LossyValueError(
                "`--labels self` needs the target's probabilities: give `--model` instead of `--target-api`"
            )
        if self.writer_dtype is not None and (self.target_api is not None or self.prepack):
            raise LossyValueError(
                f"`--writer-dtype {self.writer_dtype}` rounds the target that writes responses; leave it out, or "
                "`--target-api` and `--prepack`"
            )
        self.check({"--task": self.task}, optional=() if self.target_api is None else ("--model",))

    def load_all(self) -> LoadedModels:
        """Load task and models; refuse models with different tokenizers, or with a cache that can't be cut back."""
        task = self.task and tasks.load(self.task, self.task_data, **parse_task_options(self._settings))
        loaded = self.load_for_task(task)
        for model in loaded.by_role.values():
            check(model)
        sizes = {role: model.config.get_text_config(decoder=True).vocab_size for role, model in loaded.by_role.items()}
        if min(sizes.values()) < len(loaded.tokenizer):
            raise LossyValueError(
                f"`--assistant` has to share the target's tokenizer, but that has {len(loaded.tokenizer)} tokens, and "
                f"the models have {sizes}"
            )
        return loaded

    def miner(self, loaded: LoadedModels) -> Miner:
        tokenizer, choice, size = loaded.tokenizer, self._choice(), self.batch_size
        ends = ending_tokens((loaded.target or loaded.draft).generation_config)
        if self.target_api is not None and tokenizer.eos_token_id is not None:
            # However a text ends behind an API, here it ends with the tokenizer's EOS.
            ends = ends | {tokenizer.eos_token_id}
        limits = ResponseLimits(ends, self.max_new_tokens)
        if self.labels == "ratio":
            return RatioMiner(loaded.target, loaded.draft, limits, choice, size, self.rows_per_kind)
        guesses = DraftArgmax(loaded.draft, choice)
        positions = ("previous", "draft", "target") if self.features_target else ("previous", "draft")
        judged = partial(JudgeMiner, models=loaded.by_role, positions=dict.fromkeys(loaded.by_role, positions))
        if self.labels == "self":
            return judged(SelfLabels(loaded.target, guesses, limits, choice, size, self.horizon, self.most_lost))
        decode = partial(tokenizer.decode, skip_special_tokens=True)
        if self.target_api is None:
            author = loaded.target
            if self.writer_dtype is not None:
                author = quantize_draft(author, self.writer_dtype)
            rejoining = Rejoining(self.look_up or None, self.stop_equal or None, decode)
            writer: Writer = LocalWriter(author, size, limits, choice, rejoining)
        else:
            model = ApiModel(self.target_api, self.target_api_model, timeout=self.target_api_timeout)
            writer = ApiWriter(model, loaded.task, tokenizer, limits, size)
        unfinished = UnfinishedSearches(self.out, this_process().number)
        chosen = Chosen(self.mismatches, self.seed, self.only_solved)
        return judged(Searches(writer, guesses, loaded.task, decode, size, self.task_workers, unfinished, chosen))

    def compared(self, loaded: LoadedModels) -> dict[str, Any]:
        """Return the settings that the data depend on, which a continued run has to keep."""
        choice = self._choice()
        return {
            "split": self.split,
            "max_new_tokens": self.max_new_tokens,
            "folds": self.folds,
            "dtype": {role: str(model.dtype).removeprefix("torch.") for role, model in loaded.by_role.items()},
            "decoding": "greedy" if choice == Greedy() else {"temperature": choice.temperature, "seed": choice.seed},
            "task_data": self.task_data,
            "task_options": list(self._settings),
            "target_api_model": self.target_api_model,
            **({} if self.writer_dtype is None else {"writer_dtype": self.writer_dtype}),
            **({"rows_per_kind": self.rows_per_kind} if self.labels == "ratio" else {}),
            **({"features_target": self.features_target} if self.labels != "ratio" else {}),
            **({"horizon": self.horizon, "most_lost": self.most_lost} if self.labels == "self" else {}),
        }

    @property
    def draws(self) -> bool:
        """Whether tokens are drawn; ratios are about draws by nature."""
        return self.sampling or self.labels == "ratio"

    @property
    def _settings(self) -> Sequence[str]:
        return (*(self.task_option or ()), *(["unsafe_no_isolation=true"] if self.unsafe_no_isolation else []))

    def _choice(self) -> Choice:
        return GumbelMax(self.seed, 1.0 if self.temperature is None else self.temperature) if self.draws else Greedy()


def summary_table(kind: str, rows: Iterable[Mapping[str, Any]]) -> Table:
    """Lay out the content of a folder, given its prompts' rows."""
    rows = list(rows)
    statuses, totals = Counter(row["status"] for row in rows), Counter()
    for row in rows:
        totals.update({name: value for name, value in row.items() if isinstance(value, int)})
    shown = {"prompts": len(rows)} | {status: statuses[status] for status in (MINED, SKIPPED, FAILED)}
    if kind == "ratio":
        shown["rows"] = totals["rows"]
    else:
        mismatches = totals["mismatches"]
        cost = f"{totals['target_tokens'] / mismatches:.1f}" if mismatches else ""
        shown |= {"mismatches": mismatches, "important": _share(totals["important"], mismatches)}
        shown |= {"target tokens per mismatch": cost}
        shown |= {"responses tokenised otherwise": totals["retokenised"]} if totals["retokenised"] else {}
    table = Table(Column(), Column(justify="right"), box=SIMPLE_HEAD, show_header=False)
    for name, value in shown.items():
        table.add_row(name, str(value))
    return table


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "–"


def mine(options: MiningOptions) -> None:
    """Find out which tokens of a draft change the answer, and store them with the models' hidden states.

    Interrupted runs continue when the command is repeated. With `accelerate launch -m hf_lossy_assist mine …` the
    prompts are split over the processes.
    """
    out, process = options.out, this_process()
    if out is None:
        raise LossyValueError("`--out` has to be a folder for the data, but is not given")
    options.refuse_conflicts()
    loaded = options.load_all()
    workload = MiningWorkload(
        loaded.task, loaded.tokenizer, options.split, options.num_prompts, options.folds, process,
        longest=longest_prompt(loaded.by_role.values(), options.max_new_tokens),
    )  # fmt: skip
    kind = "ratio" if options.labels == "ratio" else "judge"
    plan = MiningPlan(kind, loaded.task.name, loaded.target, loaded.draft, options.compared(loaded))
    names = ("num_prompts", "batch_size", "mismatches", "only_solved", "look_up", "stop_equal")
    counts = {name: getattr(options, name) for name in names} | {"processes": process.count}
    screen, miner = Console(), options.miner(loaded)
    open_run(out, plan, records.provenance(loaded.draft.device, **counts))
    try:
        shown = screen if process.number == 0 else Console(quiet=True)  # one bar is enough for all processes
        with ShardStore(out, process.number, miner.schemas(), process.count) as store, progress(shown) as bar:
            prompts, total = workload.prompts(store.finished()), len(workload.examples())
            done, seen = total - len(prompts), Counter[str]()
            if done:
                shown.print(f"{done} of {total} prompts were finished before")
            # The clock starts here, so that the estimate leaves out earlier runs.
            task = bar.add_task("mining", completed=done, total=total)
            for outcome in run(miner, workload, prompts, store):
                seen.update({name: outcome.columns.get(name, 0) for name in ("mismatches", "important", "rows")})
                share = _share(seen["important"], seen["mismatches"])
                found = f"{seen['mismatches']} mismatches, {share} important"
                found = f"{seen['rows']} rows" if seen["rows"] else found
                bar.update(task, advance=1, description=f"mining, {found}")
    except KeyboardInterrupt:
        screen.print(f"stopped; {len(prompt_rows(out))} prompts are in {out}, and the same command goes on from there")
        raise typer.Exit(130) from None
    rows = prompt_rows(out)
    if len(rows) < workload.size():
        screen.print(f"process {process.number} is done; others are still at work on {out}")
    else:
        screen.print(summary_table(kind, rows))
