"""``python -m benchmarks.trade_off``: scores against tokens kept, over a rule's settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from transformers import PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from benchmarks import command
from benchmarks.plot_labels import write_labels
from benchmarks.static_lists import MismatchRates, maths_tokens, python_tokens, registered
from hf_lossy_assist.cli.console import flattened
from hf_lossy_assist.cli.evaluate import EvaluationOptions, answer_all
from hf_lossy_assist.cli.options import numbers
from hf_lossy_assist.errors import LossyValueError, nearest
from hf_lossy_assist.evaluation.answers import AnswerStore
from hf_lossy_assist.evaluation.evaluate import score_point
from hf_lossy_assist.evaluation.modes import DecodingMode, parse_gamma
from hf_lossy_assist.evaluation.plots import PlotPoint, plot
from hf_lossy_assist.evaluation.quality import ModeScore
from hf_lossy_assist.evaluation.tables import score_table


@flattened
def trade_off(
    sweep: Annotated[str, typer.Argument(help="The rule: judge or sprinter.")],
    shared: EvaluationOptions,
    families: Annotated[str | None, typer.Option(help="Only these families of settings, and lossless.")] = None,
    thresholds: Annotated[str | None, typer.Option(help="The head's thresholds, e.g. 0.1,0.2.")] = None,
    modes: Annotated[str | None, typer.Option(help="More modes, as `evaluate` takes them.")] = None,
    labels: Annotated[
        Path | None, typer.Option(help="Labels of `mine`, to list tokens by how often their mismatches mattered.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Number of problems.")] = 500,
    batch_size: Annotated[int, typer.Option(min=1, help="Problems at a time; 1 to measure speeds.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Folder for the results and the plot.")] = None,
) -> None:
    """Answer a task's problems at many settings of a rule and of its competitors.

    OUT gets a plot, and a folder trade-off-SWEEP as `evaluate` writes it. An interrupted run continues from it.
    """
    if sweep not in SWEEPS:
        raise LossyValueError(f"`SWEEP` has to be one of {list(SWEEPS)}, but is {sweep!r}{nearest(sweep, SWEEPS)}")
    if shared.engine != "hf":
        raise LossyValueError(f"`--engine` has to be 'hf', which alone knows static lists, but is {shared.engine!r}")
    disable_progress_bar()
    wanted = SWEEPS[sweep].thresholds if thresholds is None else numbers("--thresholds", thresholds, float)
    more = {} if modes is None else {mode.label: [mode] for mode in shared.modes(modes)}
    shared, screen = replace(shared, reference="lossless"), Console()
    alone = shared.modes("lossless")
    evaluation = shared.evaluation(alone, limit, assisted=True, batch_size=batch_size)
    if sweep not in evaluation.models.heads:
        raise LossyValueError(f"`--head` has to be given: the pair {shared.pair!r} has none for {sweep!r}")
    lists = static_lists(evaluation.tokenizer, LISTS.get(evaluation.task.name, LISTS["arithmetic"]), labels)
    compared = chosen(SWEEPS[sweep].families(lists, wanted), families) | more
    gamma = parse_gamma("--gamma", shared.gamma)
    listed = [
        replace(mode, gamma=mode.gamma or gamma, temperature=alone[0].temperature)
        for points in compared.values()
        for mode in points
    ]
    folder = None if out is None else out / f"trade-off-{sweep}"
    with registered():
        evaluation = replace(evaluation, modes=listed)
        store = AnswerStore() if folder is None else AnswerStore(folder, evaluation.plan())
        scores = answer_all(evaluation, store, screen).modes
    screen.print(score_table(scores.values(), "lossless"))
    if out is not None:
        plot_families(compared, scores, out / f"trade-off-{sweep}.png")


CUTS = (0.05, 0.1, 0.2, 0.35)
TOP_K = (2, 4, 8, 16)


Families = Mapping[str, list[DecodingMode]]
"""The settings of families of rules; those of one family are joined in a plot."""


def chosen(families: Families, names: str | None) -> dict[str, list[DecodingMode]]:
    """Return the families of an option ``--families``, and lossless."""
    wanted = list(families) if names is None else [name.strip() for name in names.split(",")]
    if unknown := [name for name in wanted if name not in families]:
        raise LossyValueError(f"`families` has to name some of {list(families)}, but has {unknown}")
    return {name: modes for name, modes in families.items() if name in ("lossless", *wanted)}


Lists = Mapping[str, "StaticList"]
"""Static lists by name."""

LISTS: Mapping[str, Mapping[str, Callable[[PreTrainedTokenizerBase], tuple[int, ...]]]] = {
    "arithmetic": {"maths": maths_tokens},
    "code": {"maths": maths_tokens, "python": python_tokens},
}
"""What lists of important tokens have been thought of, by task."""


@dataclass(frozen=True)
class StaticList:
    """A rule that decides by tokens alone, and its family."""

    family: str
    rule: str
    settings: Mapping[str, Any] = field(default_factory=dict)


def static_lists(
    tokenizer: PreTrainedTokenizerBase,
    known: Mapping[str, Callable[[PreTrainedTokenizerBase], tuple[int, ...]]],
    labels: Path | None = None,
) -> Lists:
    """Return lists of kinds of tokens, and lists made from mined labels."""
    lists = {name: StaticList(name, "listed", {"important": find(tokenizer)}) for name, find in known.items()}
    if labels is not None:
        rates = MismatchRates.mined(labels, len(tokenizer))
        for cut in CUTS:
            lists[f"mined tokens {cut}"] = StaticList("mined tokens", "listed", {"important": rates.important(cut)})
        for cut in CUTS:
            lists[f"mined pairs {cut}"] = StaticList("mined pairs", "listed_pairs", {"free": rates.free_pairs(cut)})
    return lists


def judge_families(lists: Lists, thresholds: Sequence[float]) -> Families:
    """Return the judge, alone and above DropMatch, beside top-K, static lists and lossless."""
    both = ["judge", "dropmatch"]
    families = {
        "lossless": [DecodingMode("lossless", "lossless")],
        "judge": [DecodingMode(f"judge τ={t}", "judge", {"threshold": t}) for t in thresholds],
        "judge + dropmatch": [
            DecodingMode(f"judge + dropmatch τ={t}", both, {"judge": {"threshold": t}}) for t in thresholds
        ],
        "dropmatch": [DecodingMode("dropmatch", "dropmatch")],
        "top-K": [DecodingMode(f"top-K K={k}", "topk", {"k": k}) for k in TOP_K],
    }
    combined = [name for name, known in lists.items() if name == known.family][-1:]
    for name, known in lists.items():
        families.setdefault(known.family, []).append(DecodingMode(name, known.rule, known.settings))
        if name in combined:
            narrow = {"all_of": [known.rule, "topk"]}
            families[f"{name} and top-K"] = [
                DecodingMode(f"{name} and top-K K={k}", narrow, {known.rule: known.settings, "topk": {"k": k}})
                for k in TOP_K
            ]
    return families


def sprinter_families(lists: Lists, thresholds: Sequence[float]) -> Families:
    """Return SPRINTER at several thresholds, beside lossless."""
    return {
        "lossless": [DecodingMode("lossless", "lossless")],
        "sprinter": [DecodingMode(f"sprinter {t}", "sprinter", {"threshold": t}) for t in thresholds],
    }


@dataclass(frozen=True)
class Sweep:
    """The settings of a rule and its competitors, given static lists of tokens and the thresholds of its head."""

    families: Callable[[Lists, Sequence[float]], Families]
    thresholds: Sequence[float]  # by default


SWEEPS: Mapping[str, Sweep] = {
    "judge": Sweep(judge_families, (0.01, 0.02, 0.05, 0.2, 0.75, 0.95, 0.98)),
    "sprinter": Sweep(sprinter_families, (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)),
}
"""Sweeps, by the rule whose head they need."""


def plot_families(families: Families, scores: Mapping[str, ModeScore], path: Path) -> None:
    """Draw scores against drafted tokens kept, a line per family, and save it as a PNG."""
    series: dict[str, list[PlotPoint]] = {}
    for family, modes in families.items():
        rows = [scores[mode.label] for mode in modes]
        knobs = [row.label.removeprefix(family).strip() for row in rows]
        series[family] = [score_point(row, row.mean_accepted, knob) for row, knob in zip(rows, knobs, strict=True)]
    ylabel = "score (%; bars: 95 % interval of the difference)"
    plot(series, "drafted tokens kept per round", ylabel, path, write_labels=write_labels)


app = command(trade_off)

if __name__ == "__main__":
    app()
