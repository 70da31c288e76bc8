"""What a rule's knob buys: accuracy against tokens kept, over many settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from ..stats import LossyStats, joined
from ..tasks import Example, Task
from .comparison import texts_of
from .maths_tokens import MathsTokens, maths_tokens
from .modes import DecodingMode, Models
from .plots import PlotPoint, plot
from .quality import judge, wilson
from .requests import batches_of, run_request

JUDGE_THRESHOLDS = (0.01, 0.02, 0.05, 0.2, 0.75, 0.95, 0.98)
VERIFIER_THRESHOLDS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
TOP_K = (2, 4, 8, 16)


@dataclass(frozen=True)
class SweepPoint:
    """One setting of one family of rules.

    Attributes
    ----------
    family
        Points of one family are joined in a plot.
    knob
        What changes within it, as text.
    rule, settings
        ``lossy_mode`` and ``lossy_config``.
    """

    family: str
    knob: str
    rule: Any
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class TradeOff:
    """One setting over all problems.

    Attributes
    ----------
    family, knob, mode, config
        As in :class:`SweepPoint`.
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
    tokens
        Output tokens.
    accepted_by
        Kept tokens by rule.
    flops
        As in :class:`~hf_lossy_assist.stats.LossyStats`, added up.
    seconds
        Of all ``generate()`` calls; None in rows whose speeds are worth nothing.
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
    accepted_by: Mapping[str, int]
    flops: Mapping[str, float]
    seconds: float | None = None

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

    Parameters
    ----------
    models, tokenizer, task
        Who answers, with the heads that the points need; ``lossy_mode="maths"`` has to be registered where a point
        asks for it.
    points
        The settings.
    examples
        The problems.
    gamma
        Drafted tokens per round.
    batch_size
        Problems at a time; more than one is faster, and leaves ``seconds`` without meaning for one user.
    on_batch
        Told how many problems were answered, after every batch.
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
        for batch in batches:
            responses.append(run_request(models, mode, batch, task.max_new_tokens))
            on_batch(len(batch))
        correct = sum(judge(tokenizer, task, examples, texts_of(responses)))
        stats = joined([row for response in responses for row in response.stats.rows])
        yield _row(point, len(examples), correct, sum(response.seconds for response in responses), stats)


def _row(point: SweepPoint, problems: int, correct: int, seconds: float, stats: LossyStats) -> TradeOff:
    low, high = wilson(correct, problems)
    return TradeOff(
        family=point.family,
        knob=point.knob,
        mode=point.rule,
        config=dict(point.settings),
        problems=problems,
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
        seconds=seconds,
    )


def plot_trade_off(rows: Sequence[TradeOff], path: Path) -> None:
    """Draw accuracy against drafted tokens kept, a line per family, with 95 % intervals, and save it as a PNG."""
    families: dict[str, list[PlotPoint]] = {}
    for row in rows:
        accuracy = (100 * row.accuracy, 100 * row.low, 100 * row.high)
        families.setdefault(row.family, []).append(PlotPoint((row.mean_accepted,) * 3, accuracy, row.knob))
    plot(families, "drafted tokens kept per round", "exact answers (%)", path)
