"""``lossy-assist train judge`` and ``lossy-assist train verifier``: heads from labelled hidden states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from ..errors import need
from .console import Console, limit_threads
from .options import AT_LEAST_0, AT_LEAST_1, PairName, must

if TYPE_CHECKING:
    from ..evaluation.tables import Column, NumberTable
    from ..heads import JudgeConfig, ModelIdentity, VerifierConfig
    from ..training.examples import LabelledMismatch

# With fewer important tokens, the standard error of a recall of 0.9 is above 3 points.
_ENOUGH = 100

Out = Annotated[Path, Parameter(help="Folder for the head.")]
License = Annotated[str | None, Parameter(help="License for the card, as the Hub names it.")]
Pair = Annotated[PairName | None, Parameter(help="The pair with the models.")]
Seed = Annotated[int, AT_LEAST_0, Parameter(help="Seed of every random number.")]
Threads = Annotated[int | None, AT_LEAST_1, Parameter(help="CPU threads; torch's choice by default.")]


def judge(
    *,
    out: Out,
    data: Annotated[
        list[Path],
        Parameter(help="Folder that `lossy-assist mine` wrote. Repeatable: other prompts of the same task and models."),
    ],
    pair: Pair = None,
    model: Annotated[
        str | None, Parameter(help="The target, a folder or a Hub id, where --data was mined through an API.")
    ] = None,
    threads: Threads = None,
    models: Annotated[Literal["target", "draft", "both"], Parameter(help="The models to read states of.")] = "target",
    features: Annotated[
        Literal["draft", "previous", "both"] | None,
        Parameter(
            help="The state that has read the drafted token, the one that predicted it, or both; by default the better "
            "of the two, out of fold."
        ),
    ] = None,
    recall: Annotated[float, Parameter(help="Share of important tokens that the threshold has to find.")] = 0.9,
    seed: Seed = 0,
    license: License = None,
) -> None:
    """Train a judge head, which tells whether a mismatch matters for the answer (AutoJudge).

    The head is a logistic regression on standardised hidden states, fitted to
    all prompts. Its figures and thresholds are out of fold: each prompt is
    judged by a classifier that has not seen it.
    """
    need("lab", "`lossy-assist train judge`")
    from transformers.utils.logging import disable_progress_bar

    from ..training import judge_training
    from ..training.examples import check, read_together

    limit_threads(threads)
    disable_progress_bar()
    screen, settings = Console(), judge_training.JudgeSettings(models, features, recall, seed=seed)
    # A target behind an API has no weights here, so its configuration is enough.
    labelled = read_together(data, settings.columns, model and _identity_of(model))
    check(labelled.examples)
    origin = labelled.origin.with_card(license, pair)
    trained = judge_training.train_judge(labelled.examples, origin, settings)
    trained.save(out)
    _describe_judge(trained.head.config, labelled, settings.choices, screen)
    screen.print(f"saved in {out}")


def _identity_of(model: str) -> ModelIdentity:
    """Return a model's identity from its configuration; weights may be many gigabytes."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from ..compat.models import load_errors
    from ..heads import ModelIdentity

    with load_errors("`--model`", model):
        config = AutoConfig.from_pretrained(model)
    with torch.device("meta"):
        return ModelIdentity.of(AutoModelForCausalLM.from_config(config))


def _describe_judge(config: JudgeConfig, labelled: LabelledMismatch, choices: Sequence[str], screen: Console) -> None:
    metrics = config.metrics
    shares = {"important found (%)": "recall", "mismatches skipped (%)": "skipped"}
    screen.print(_threshold_table(config, "Thresholds, out of fold", shares))
    screen.print(
        f"{metrics['prompts']:,} prompts, {metrics['tokens']:,} mismatches, "
        f"{100 * metrics['important_share']:.1f} % important; reads {config.reads}"
    )
    if "auc_solved" in metrics:
        solved = f"on {metrics['solved_prompts']:,} prompts that the target solves"
        screen.print(f"{_area(metrics, 'auc_solved')} out of fold, {solved}")
    _print_areas(metrics, choices, screen)
    if (few := int(labelled.examples.labels.sum())) < _ENOUGH:
        screen.print(f"note: the threshold depends on only {few} important tokens; mine more prompts", style="yellow")
    screen.print(f"threshold {config.threshold:.6g}; C = {metrics['C']:g}")


def _print_areas(metrics: Mapping[str, float], choices: Sequence[str], screen: Console) -> None:
    screen.print(f"{_area(metrics)} out of fold, on all prompts; {metrics['train_auc']:.4f} on what the head has seen")
    if len(choices) > 1:
        states = ", ".join(f"{metrics[f'auc_{name}']:.4f} for {name!r}" for name in choices)
        screen.print(f"AUC by state: {states}")


def _area(metrics: Mapping[str, float], name: str = "auc") -> str:
    return f"AUC {metrics[name]:.4f} ({metrics[f'{name}_low']:.4f} … {metrics[f'{name}_high']:.4f})"


def _threshold_table(config: JudgeConfig | VerifierConfig, title: str, shares: Mapping[str, str]) -> NumberTable:
    """Lay out a head's thresholds and their effects; mark the chosen one."""
    from ..evaluation.tables import percent, table

    def share(name: str) -> Column:
        return lambda row: percent(getattr(row, name), 1)

    def threshold(row: Any) -> str:
        return f"{row.threshold:.6g}" + " ←" * (row.threshold == config.threshold)

    columns = {"threshold": threshold, **{heading: share(name) for heading, name in shares.items()}}
    return table(config.thresholds, columns, title)


def verifier(
    *,
    out: Out,
    data: Annotated[Path, Parameter(help="Folder that `lossy-assist mine --labels ratio` wrote.")],
    pair: Pair = None,
    threads: Threads = None,
    ratio: Annotated[
        float, Parameter(name="--lambda", help="A token is acceptable iff q/p is at most this: 1, 1.2, 1.5, ….")
    ] = 1.0,
    position: Annotated[
        Literal["previous", "token"] | None,
        Parameter(
            help="The draft's state that predicted the token, or the one that has read it; by default the better one "
            "out of fold."
        ),
    ] = None,
    threshold: Annotated[
        float,
        must("from 0 to 1", lambda x: 0 <= x <= 1),
        Parameter(help="A token is committed iff the head's probability is above this."),
    ] = 0.5,
    recall: Annotated[
        float | None, Parameter(help="Share of acceptable tokens that the threshold has to commit, instead of it.")
    ] = None,
    seed: Seed = 0,
    license: License = None,
) -> None:
    """Train a verifier head, which tells whether a drafted token needs the target's check (SPRINTER).

    The head is a logistic regression on the draft's standardised hidden state,
    fitted to all prompts. Its figures and thresholds are out of fold: each
    prompt is judged by a head that has not seen it. The plot in OUT shows its
    ROC curve.
    """
    need("lab", "`lossy-assist train verifier`")
    from transformers.utils.logging import disable_progress_bar

    from ..training.examples import read_ratios
    from ..training.verifier_training import VerifierSettings, train_verifier

    limit_threads(threads)
    disable_progress_bar()
    screen, settings = Console(), VerifierSettings(ratio, position, threshold, recall, seed=seed)
    ratios, origin = read_ratios(data, settings.positions)
    origin = origin.with_card(license, pair)
    trained = train_verifier(ratios, origin, settings)
    trained.save(out)
    config, metrics = trained.head.config, trained.head.config.metrics
    title = f"Thresholds at λ = {config.ratio:g}, out of fold"
    screen.print(_threshold_table(config, title, {"TPR (%)": "tpr", "FPR (%)": "fpr"}))
    screen.print(
        f"{metrics['prompts']:,} prompts, {metrics['tokens']:,} tokens, "
        f"{100 * metrics['acceptable_share']:.1f} % acceptable at λ = {config.ratio:g}"
    )
    _print_areas(metrics, settings.positions, screen)
    screen.print(f"TPR {metrics['tpr']:.3f}, FPR {metrics['fpr']:.3f} at {config.threshold:.6g}; saved in {out}")
