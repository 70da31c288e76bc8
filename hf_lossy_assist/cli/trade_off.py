"""``lossy-assist trade-off``: accuracy against tokens kept, over a rule's settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
import typer
from rich.console import Console
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from ..acceptors import REGISTRY, Acceptor, register
from ..config import nearest
from ..errors import LossyValueError
from ..evaluation import records
from ..evaluation.comparison import texts_of
from ..evaluation.modes import DecodingMode, Models
from ..evaluation.plots import PlotPoint, plot
from ..evaluation.quality import judge, wilson
from ..evaluation.requests import batches_of, run_request
from ..messages import Verification
from ..stats import joined
from ..tasks import Example, Task
from .console import limit_threads, progress
from .models import judged_pair, load_heads
from .options import Gamma, PairName, Threads
from .rendering import number, percent, table


def trade_off(
    sweep: Annotated[str, typer.Argument(help="What is compared: judge or sprinter.")] = "judge",
    pair: PairName = "arithmetic",
    head: Annotated[str | None, typer.Option(help="Another head than the pair's: a folder or a Hub id.")] = None,
    problems: Annotated[int, typer.Option(min=1, help="Problems of the split.")] = 500,
    split: Annotated[str, typer.Option(help="Which problems.")] = "test",
    gamma: Gamma = 32,
    batch_size: Annotated[int, typer.Option(min=1, help="Problems at a time; speeds are a user's own at 1 only.")] = 1,
    threads: Threads = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the rows (JSON lines) and the plot.")] = None,
) -> None:
    """Answer a task's problems at many settings of a rule and of those it competes with, greedily."""
    if sweep not in SWEEPS:
        raise LossyValueError(f"`SWEEP` has to be one of {list(SWEEPS)}, but is {sweep!r}{nearest(sweep, SWEEPS)}")
    limit_threads(threads)
    disable_progress_bar()
    loaded = judged_pair(pair)
    heads = {**loaded.rule_heads, **load_heads([] if head is None else [f"{sweep}={head}"], "cpu")}
    if sweep not in heads:
        raise LossyValueError(f"`--head` has to be given: the pair {pair!r} has none for {sweep!r}")
    points, examples = SWEEPS[sweep](), loaded.task.examples(split, problems)
    screen, rows = Console(), []
    origin = records.provenance("cpu", gamma=gamma, split=split, problems=problems, batch_size=batch_size)
    with (
        progress(screen) as bar,
        records.written(None if out is None else out / f"trade-off-{sweep}.jsonl", origin) as write,
    ):
        task = bar.add_task("answering", total=len(points) * len(examples))
        for row in measure(
            Models(loaded.target, loaded.draft, heads), loaded.tokenizer, loaded.task, points, examples, gamma=gamma,
            batch_size=batch_size, on_batch=lambda n: bar.advance(task, n),
        ):  # fmt: skip
            write(row)
            rows.append(row)
    columns = {
        "rule": lambda row: f"{row.family} {row.knob}",
        "right\n(%)": lambda row: percent(row.accuracy, 1),
        "95 %": lambda row: f"{percent(row.low)}–{percent(row.high)}",
        "mean\nkept": lambda row: number(row.mean_accepted),
        "tokens/\ncall": lambda row: number(row.tokens_per_call),
        "calls/\n100": lambda row: number(row.target_calls_per_100_tokens),
        "mean\nrun": lambda row: number(row.mean_run or None),
        "tokens\n/s": lambda row: f"{row.tokens / row.seconds:.0f}",
    }
    screen.print(table(rows, columns, f"{len(examples)} problems, greedy, γ = {gamma}"))
    if out is not None:
        plot_trade_off(rows, out / f"trade-off-{sweep}.png")


_MATHS = re.compile(r"\d|^\s*[-+*/=<>%^()x×÷·−]+\s*$")
JUDGE_THRESHOLDS = (0.01, 0.02, 0.05, 0.2, 0.75, 0.95, 0.98)
VERIFIER_THRESHOLDS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
TOP_K = (2, 4, 8, 16)


def maths_tokens(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the ids of tokens with digits, and of those made of operators, brackets or a lone x.

    Examples
    --------
    >>> from hf_lossy_assist import pairs
    >>> tokenizer = pairs.load("arithmetic").tokenizer
    >>> {tokenizer.convert_tokens_to_ids(x) for x in ("7", "+", "=")} <= maths_tokens(tokenizer)
    True
    """
    texts = {i: tokenizer.decode([i]) for i in range(len(tokenizer))}
    return frozenset(i for i, text in texts.items() if _MATHS.search(text)) | set(tokenizer.all_special_ids)


@dataclass(frozen=True)
class MathsTokens(Acceptor):
    """Keep x iff the target would choose it too, or neither its token nor the draft's is one of mathematics.

    Garipov et al. 2025 (AutoJudge), appendix K. A baseline for measurements; greedy.

    Parameters
    ----------
    important
        The ids of the tokens of mathematics.
    """

    important: frozenset[int] = field(default=frozenset())

    name: ClassVar[str] = "maths"
    paper: ClassVar[str] = "Garipov et al. 2025 (appendix K)"
    lossless_at: ClassVar[Mapping[str, Any]] = {}

    def is_lossless(self, do_sample: bool) -> bool:
        """Tell that it never is."""
        return False

    def keep(self, v: Verification) -> Tensor:
        """Return ``(B, n)`` where neither token is of mathematics, or both are the same."""
        important = torch.tensor(sorted(self.important), device=v.tokens.device)
        mismatch = torch.isin(v.tokens, important) | torch.isin(v.best[:, :-1], important)
        return v.lossless | (~mismatch & v.allowed)


@contextmanager
def _registered() -> Iterator[None]:
    """Make ``lossy_mode="maths"`` available inside the block."""
    register(MathsTokens)
    try:
        yield
    finally:
        REGISTRY.pop(MathsTokens.name, None)


@dataclass(frozen=True)
class SweepPoint:
    """One setting of one family of rules."""

    family: str  # points of one family are joined in a plot
    knob: str  # what changes within the family, as text
    rule: Any
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class TradeOff:
    """The results of one :class:`SweepPoint` over all problems."""

    family: str
    knob: str
    mode: Any
    config: Mapping[str, Any]
    # How many, and how many were answered right.
    problems: int
    correct: int
    # 95 % interval of the accuracy (Wilson).
    low: float
    high: float
    mean_accepted: float  # drafted tokens kept per round
    tokens_per_call: float  # output tokens per forward pass of the target
    # The same the other way round; and tokens per run ahead of the target, for SPRINTER.
    target_calls_per_100_tokens: float
    mean_run: float
    tokens: int
    accepted_by: Mapping[str, int]  # kept tokens by rule
    flops: Mapping[str, float]  # as in :class:`~hf_lossy_assist.stats.LossyStats`, added up
    seconds: float | None = None  # of all ``generate()`` calls; None in rows whose speeds are worth nothing

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return self.correct / self.problems


def judge_points() -> list[SweepPoint]:
    """Return the judge, alone and above DropMatch, beside top-K, tokens of mathematics and lossless."""
    both = ["judge", "dropmatch"]
    return [
        SweepPoint("lossless", "", "lossless", {}),
        *(SweepPoint("judge", f"τ={t}", "judge", {"threshold": t}) for t in JUDGE_THRESHOLDS),
        *(SweepPoint("judge + dropmatch", f"τ={t}", both, {"judge": {"threshold": t}}) for t in JUDGE_THRESHOLDS),
        SweepPoint("dropmatch", "", "dropmatch", {}),
        *(SweepPoint("top-K", f"K={k}", "topk", {"k": k}) for k in TOP_K),
        SweepPoint("maths", "", "maths", {}),
        *(SweepPoint("maths and top-K", f"K={k}", {"all_of": ["maths", "topk"]}, {"topk": {"k": k}}) for k in TOP_K),
    ]


def sprinter_points() -> list[SweepPoint]:
    """Return SPRINTER at several thresholds, beside lossless."""
    return [
        SweepPoint("lossless", "", "lossless", {}),
        *(SweepPoint("sprinter", f"{t}", "sprinter", {"threshold": t}) for t in VERIFIER_THRESHOLDS),
    ]


SWEEPS: Mapping[str, Callable[[], list[SweepPoint]]] = {"judge": judge_points, "sprinter": sprinter_points}
"""Named sets of points, by the rule whose head they need."""


def measure(
    models: Models,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    points: Sequence[SweepPoint],
    examples: Sequence[Example],
    *,
    gamma: int,
    batch_size: int = 1,
    on_batch: Callable[[int], None] = lambda n: None,
) -> Iterator[TradeOff]:
    """Answer all problems at every point, greedily.

    More than one problem at a time is faster, and leaves ``seconds`` without meaning for one user. ``on_batch`` is told
    after every batch how many problems it had.
    """
    important = {"important": maths_tokens(tokenizer)}
    prompts = [task.encode(example, tokenizer) for example in examples]
    batches = batches_of(prompts, batch_size, device=models.target.device, pad=tokenizer.pad_token_id)
    for point in points:
        settings = dict(point.settings)
        if point.rule == MathsTokens.name:
            settings |= important
        elif MathsTokens.name in DecodingMode(rule=point.rule).rules:
            settings[MathsTokens.name] = important
        mode = DecodingMode(point.family, point.rule, settings, gamma)
        responses = []
        with _registered():
            for batch in batches:
                responses.append(run_request(models, mode, batch, task.max_new_tokens))
                on_batch(len(batch))
        correct = sum(judge(tokenizer, task, examples, texts_of(responses)))
        low, high = wilson(correct, len(examples))
        stats = joined([row for response in responses for row in response.stats.rows])
        yield TradeOff(
            family=point.family,
            knob=point.knob,
            mode=point.rule,
            config=dict(point.settings),
            problems=len(examples),
            correct=correct,
            low=low,
            high=high,
            mean_accepted=stats.mean_accepted,
            tokens_per_call=len(stats.trace) / max(1, stats.target_calls),
            target_calls_per_100_tokens=stats.target_calls_per_100_tokens,
            mean_run=stats.mean_run,
            tokens=len(stats.trace),
            accepted_by=dict(stats.accepted_by),
            flops=dict(stats.flops),
            seconds=sum(response.seconds for response in responses),
        )


def plot_trade_off(rows: Sequence[TradeOff], path: Path) -> None:
    """Draw accuracy against drafted tokens kept, a line per family, with 95 % intervals, and save it as a PNG."""
    families: dict[str, list[PlotPoint]] = {}
    for row in rows:
        accuracy = (100 * row.accuracy, 100 * row.low, 100 * row.high)
        families.setdefault(row.family, []).append(PlotPoint((row.mean_accepted,) * 3, accuracy, row.knob))
    plot(families, "drafted tokens kept per round", "exact answers (%)", path)
