"""What a rule's knob buys: accuracy against tokens kept, over many settings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from scipy.stats import binomtest

from ..enabling import enabled
from ..heads import Head
from ..pairs import Pair
from ..pairs.evaluation import MAX_NEW_TOKENS
from ..stats import LossyStats
from ..tasks import Example
from .maths_tokens import maths_tokens
from .runs import pool

JUDGE_THRESHOLDS = (0.01, 0.02, 0.05, 0.2, 0.75, 0.95, 0.98)
VERIFIER_THRESHOLDS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
TOP_K = (2, 4, 8, 16)


@dataclass(frozen=True)
class Point:
    """One setting of one family of rules.

    Attributes
    ----------
    family
        Points of one family are joined in a plot.
    knob
        What changes within it, as text.
    mode, config
        ``lossy_mode`` and ``lossy_config``.
    heads
        Names of the heads that it needs, by rule.
    """

    family: str
    knob: str
    mode: Any
    config: Mapping[str, Any] = field(default_factory=dict)
    heads: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TradeOff:
    """One setting over all problems.

    Attributes
    ----------
    family, knob, mode, config
        As in :class:`Point`.
    problems, correct
        How many, and how many were answered right.
    low, high
        95 % interval of the accuracy (Wilson).
    mean_accepted
        Drafted tokens kept per round.
    tokens_per_call
        Output tokens per forward pass of the target.
    target_calls_per_100_tokens, mean_run
        The same the other way round; and tokens per run ahead of the target, for SPRINTER.
    tokens, seconds
        Output tokens, and seconds of all ``generate()`` calls.
    accepted_by
        Kept tokens by rule.
    flops
        As in :class:`~hf_lossy_assist.stats.LossyStats`, added up.
    """

    family: str
    knob: str
    mode: Any
    config: Mapping[str, Any]
    problems: int
    correct: int
    low: float
    high: float
    mean_accepted: float
    tokens_per_call: float
    target_calls_per_100_tokens: float
    mean_run: float
    tokens: int
    seconds: float
    accepted_by: Mapping[str, int]
    flops: Mapping[str, float]

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return self.correct / self.problems


def judge_points() -> list[Point]:
    """Return the judge, alone and above DropMatch, beside top-K, tokens of mathematics and lossless."""
    head = {"judge": "judge"}
    return [
        Point("lossless", "", "lossless"),
        *(Point("judge", f"τ={t}", "judge", {"threshold": t}, head) for t in JUDGE_THRESHOLDS),
        *(
            Point("judge + dropmatch", f"τ={t}", ["judge", "dropmatch"], {"judge": {"threshold": t}}, head)
            for t in JUDGE_THRESHOLDS
        ),
        Point("dropmatch", "", "dropmatch"),
        *(Point("top-K", f"K={k}", "topk", {"k": k}) for k in TOP_K),
        Point("maths", "", "maths"),
        *(Point("maths and top-K", f"K={k}", {"all_of": ["maths", "topk"]}, {"topk": {"k": k}}) for k in TOP_K),
    ]


def sprinter_points() -> list[Point]:
    """Return SPRINTER at several thresholds, beside lossless."""
    head = {"sprinter": "verifier"}
    return [
        Point("lossless", "", "lossless"),
        *(Point("sprinter", f"{t}", "sprinter", {"threshold": t}, head) for t in VERIFIER_THRESHOLDS),
    ]


SWEEPS: Mapping[str, Callable[[], list[Point]]] = {"judge": judge_points, "sprinter": sprinter_points}
"""Named sets of points."""


def measure(
    pair: Pair,
    points: Sequence[Point],
    examples: Sequence[Example],
    *,
    gamma: int,
    batch_size: int = 1,
    heads: Mapping[str, Head] | None = None,
    on_batch: Callable[[int], None] = lambda n: None,
) -> Iterator[TradeOff]:
    """Answer all problems at every point, greedily.

    Parameters
    ----------
    pair
        Models and task; ``lossy_mode="maths"`` has to be registered where a point asks for it.
    points
        The settings.
    examples
        The problems.
    gamma
        Drafted tokens per round.
    batch_size
        Problems at a time; more than one is faster, and leaves ``seconds`` without meaning for one user.
    heads
        Heads by name, instead of the pair's.
    on_batch
        Told how many problems were answered, after every batch.
    """
    available = {**pair.heads, **(heads or {})}
    important = maths_tokens(pair.tokenizer)
    with enabled(pair.target), torch.inference_mode():
        for point in points:
            runs: list[LossyStats] = []
            correct, seconds = 0, 0.0
            for start in range(0, len(examples), batch_size):
                batch = examples[start : start + batch_size]
                began = time.perf_counter()
                texts, stats = _answer(pair, point, batch, gamma, available, important)
                seconds += time.perf_counter() - began
                runs += stats.rows
                correct += sum(pair.task.correct(x, text) for x, text in zip(batch, texts, strict=True))
                on_batch(len(batch))
            yield _row(point, len(examples), correct, seconds, pool(runs))


def _answer(
    pair: Pair, point: Point, batch: Sequence[Example], gamma: int, heads: Mapping[str, Head], important: frozenset[int]
) -> tuple[list[str], LossyStats]:
    inputs = pair.tokenizer([x.prompt for x in batch], return_tensors="pt", padding=True, padding_side="left")
    config: dict[str, Any] = dict(point.config)
    if "maths" in str(point.mode):
        config["maths"] = {"important": important}
        config = config["maths"] if point.mode == "maths" else config
    output = pair.target.generate(
        **inputs.to(pair.target.device),
        assistant_model=pair.draft,
        num_assistant_tokens=gamma,
        lossy_mode=point.mode,
        lossy_config={**config, "seed": 0},
        lossy_head={rule: heads[name] for rule, name in point.heads.items()} or None,
        do_sample=False,
        max_new_tokens=MAX_NEW_TOKENS,
        return_dict_in_generate=True,
    )
    new = output.sequences[:, inputs["input_ids"].shape[1] :]
    return pair.tokenizer.batch_decode(new, skip_special_tokens=True), output.lossy_stats


def _row(point: Point, problems: int, correct: int, seconds: float, stats: LossyStats) -> TradeOff:
    interval = binomtest(correct, problems).proportion_ci(method="wilson")
    return TradeOff(
        family=point.family,
        knob=point.knob,
        mode=point.mode,
        config=dict(point.config),
        problems=problems,
        correct=correct,
        low=float(interval.low),
        high=float(interval.high),
        mean_accepted=stats.mean_accepted,
        tokens_per_call=len(stats.trace) / max(1, stats.target_calls),
        target_calls_per_100_tokens=stats.target_calls_per_100_tokens,
        mean_run=stats.mean_run,
        tokens=len(stats.trace),
        seconds=seconds,
        accepted_by=dict(stats.accepted_by),
        flops=dict(stats.flops),
    )


def plot(rows: Sequence[TradeOff], path: Path) -> None:
    """Draw accuracy against mean accepted, a line per family, with 95 % intervals, and save it as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for family in dict.fromkeys(row.family for row in rows):
        mine = sorted((row for row in rows if row.family == family), key=lambda row: row.mean_accepted)
        accuracy = [100 * row.accuracy for row in mine]
        errors = [[100 * (row.accuracy - row.low) for row in mine], [100 * (row.high - row.accuracy) for row in mine]]
        kept = [row.mean_accepted for row in mine]
        axes.errorbar(kept, accuracy, yerr=errors, fmt="o-", capsize=2, elinewidth=0.6, label=family)
        for row, x, y in zip(mine, kept, accuracy, strict=True):
            axes.annotate(row.knob, (x, y), textcoords="offset points", xytext=(4, 4), fontsize=7)
    axes.set(xlabel="drafted tokens kept per round", ylabel="exact answers (%)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=130)
