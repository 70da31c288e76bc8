"""``lossy-assist trade-off``: scores against tokens kept, over a rule's settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
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

from .. import tasks
from ..acceptors import REGISTRY, Acceptor, register
from ..config import nearest
from ..errors import LossyValueError
from ..evaluation.answers import AnswerStore
from ..evaluation.evaluate import Evaluation, score_point
from ..evaluation.modes import DecodingMode, Models
from ..evaluation.plots import PlotPoint, plot
from ..evaluation.quality import ModeScore
from ..messages import Verification
from .console import limit_threads
from .evaluate import answer_all, score_table
from .models import ModelOptions, load_heads
from .options import DraftSource, Gamma, PairName, TaskData, TaskName, Threads


def trade_off(
    sweep: Annotated[str, typer.Argument(help="What is compared: judge or sprinter.")] = "judge",
    pair: PairName = "arithmetic",
    assistant: DraftSource = None,
    task: TaskName = None,
    data: TaskData = None,
    head: Annotated[str | None, typer.Option(help="Another head than the pair's: a folder or a Hub id.")] = None,
    problems: Annotated[int, typer.Option(min=1, help="Problems of the split.")] = 500,
    split: Annotated[str, typer.Option(help="Which problems.")] = "test",
    gamma: Gamma = 32,
    batch_size: Annotated[int, typer.Option(min=1, help="Problems at a time; speeds are a user's own at 1 only.")] = 1,
    threads: Threads = None,
    out: Annotated[Path | None, typer.Option(help="Folder for a folder of results, and the plot.")] = None,
) -> None:
    """Answer a task's problems at many settings of a rule and of those it competes with, greedily.

    OUT gets a folder trade-off-SWEEP as `evaluate` writes it, which an interrupted run goes on with, and a plot.
    """
    if sweep not in SWEEPS:
        raise LossyValueError(f"`SWEEP` has to be one of {list(SWEEPS)}, but is {sweep!r}{nearest(sweep, SWEEPS)}")
    limit_threads(threads)
    disable_progress_bar()
    loaded = ModelOptions(pair, assistant=assistant, device="cpu").load(
        None if task is None else tasks.load(task, data)
    )
    if loaded.task is None:
        raise LossyValueError(f"`--task` has to be given: the pair {pair!r} has none of its own")
    heads = {**loaded.heads, **load_heads([] if head is None else [f"{sweep}={head}"], "cpu")}
    if sweep not in heads:
        raise LossyValueError(f"`--head` has to be given: the pair {pair!r} has none for {sweep!r}")
    families, screen = SWEEPS[sweep](maths_tokens(loaded.tokenizer)), Console()
    modes = [mode for points in families.values() for mode in with_gamma(points, gamma)]
    folder = None if out is None else out / f"trade-off-{sweep}"
    with _registered():
        evaluation = Evaluation(
            Models(loaded.target, loaded.draft, heads), loaded.tokenizer, loaded.task, modes, "lossless", problems,
            split, batch_size,
        )  # fmt: skip
        store = AnswerStore() if folder is None else AnswerStore(folder, evaluation.plan())
        scores = answer_all(evaluation, store, screen).modes
    screen.print(score_table(scores.values(), "lossless"))
    if out is not None:
        plot_families(families, scores, out / f"trade-off-{sweep}.png")


_MATHS = re.compile(r"\d|^\s*[-+*/=<>%^()x×÷·−]+\s*$")
JUDGE_THRESHOLDS = (0.01, 0.02, 0.05, 0.2, 0.75, 0.95, 0.98)
VERIFIER_THRESHOLDS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
TOP_K = (2, 4, 8, 16)


def maths_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return the ids of tokens with digits, and of those made of operators, brackets or a lone x.

    Examples
    --------
    >>> from hf_lossy_assist import pairs
    >>> tokenizer = pairs.load("arithmetic").tokenizer
    >>> {tokenizer.convert_tokens_to_ids(x) for x in ("7", "+", "=")} <= {*maths_tokens(tokenizer)}
    True
    """
    texts = {i: tokenizer.decode([i]) for i in range(len(tokenizer))}
    return tuple(sorted({i for i, text in texts.items() if _MATHS.search(text)} | set(tokenizer.all_special_ids)))


@dataclass(frozen=True)
class MathsTokens(Acceptor):
    """Keep x iff the target would choose it too, or neither its token nor the draft's is one of mathematics.

    Garipov et al. 2025 (AutoJudge), appendix K. A baseline for measurements; greedy.

    Parameters
    ----------
    important
        The ids of the tokens of mathematics.
    """

    important: tuple[int, ...] = field(default=())

    name: ClassVar[str] = "maths"
    paper: ClassVar[str] = "Garipov et al. 2025 (appendix K)"
    lossless_at: ClassVar[Mapping[str, Any]] = {}

    def is_lossless(self, do_sample: bool) -> bool:
        """Tell that it never is."""
        return False

    def keep(self, v: Verification) -> Tensor:
        """Return ``(B, n)`` where neither token is of mathematics, or both are the same."""
        important = torch.tensor(self.important, device=v.tokens.device)
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


Families = Mapping[str, list[DecodingMode]]
"""The settings of families of rules; those of one family are joined in a plot."""


def with_gamma(modes: list[DecodingMode], gamma: int) -> list[DecodingMode]:
    """Return modes that draft so many tokens."""
    return [DecodingMode(mode.label, mode.rule, mode.settings, gamma) for mode in modes]


def judge_families(maths: tuple[int, ...] = ()) -> Families:
    """Return the judge, alone and above DropMatch, beside top-K, tokens of mathematics and lossless."""
    both, narrow, known = ["judge", "dropmatch"], {"all_of": ["maths", "topk"]}, {"important": maths}
    return {
        "lossless": [DecodingMode("lossless", "lossless")],
        "judge": [DecodingMode(f"judge τ={t}", "judge", {"threshold": t}) for t in JUDGE_THRESHOLDS],
        "judge + dropmatch": [
            DecodingMode(f"judge + dropmatch τ={t}", both, {"judge": {"threshold": t}}) for t in JUDGE_THRESHOLDS
        ],
        "dropmatch": [DecodingMode("dropmatch", "dropmatch")],
        "top-K": [DecodingMode(f"top-K K={k}", "topk", {"k": k}) for k in TOP_K],
        "maths": [DecodingMode("maths", "maths", known)],
        "maths and top-K": [
            DecodingMode(f"maths and top-K K={k}", narrow, {"maths": known, "topk": {"k": k}}) for k in TOP_K
        ],
    }


def sprinter_families(maths: tuple[int, ...] = ()) -> Families:
    """Return SPRINTER at several thresholds, beside lossless."""
    return {
        "lossless": [DecodingMode("lossless", "lossless")],
        "sprinter": [DecodingMode(f"sprinter {t}", "sprinter", {"threshold": t}) for t in VERIFIER_THRESHOLDS],
    }


SWEEPS: Mapping[str, Callable[[tuple[int, ...]], Families]] = {"judge": judge_families, "sprinter": sprinter_families}
"""Named sets of settings, by the rule whose head they need; they are given the tokens of mathematics."""


def plot_families(families: Families, scores: Mapping[str, ModeScore], path: Path) -> None:
    """Draw scores against drafted tokens kept, a line per family, and save it as a PNG."""
    series: dict[str, list[PlotPoint]] = {}
    for family, modes in families.items():
        rows = [scores[mode.label] for mode in modes]
        knobs = [row.label.removeprefix(family).strip() for row in rows]
        series[family] = [score_point(row, row.mean_accepted, knob) for row, knob in zip(rows, knobs, strict=True)]
    plot(series, "drafted tokens kept per round", "score (%; bars: 95 % interval of the difference)", path)
