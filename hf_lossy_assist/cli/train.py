"""``lossy-assist train judge`` and ``lossy-assist train verifier``: heads from labelled hidden states."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from transformers.utils.logging import disable_progress_bar

from ..errors import LossyValueError
from .console import console, limit_threads, progress
from .train_data import Labels, carded, from_annotations
from .train_tables import classifier_table, rate_table, recall_table, states_table

if TYPE_CHECKING:
    from ..training.judge_training import JudgeSettings
    from ..training.mined import Judged

COMPARISON = "comparison.json"

# With fewer, a recall of 0.9 is known to worse than 6 points (one standard error of 3).
_ENOUGH = 100

app = typer.Typer(name="train", help="Train heads from mined or annotated data.", no_args_is_help=True)

Out = Annotated[Path, typer.Option(help="Folder for the head.")]
PairName = Annotated[str | None, typer.Option(help="The bundled pair that the models are.")]
License = Annotated[str | None, typer.Option(help="The head's license, as the Hub calls it, for its card.")]
Validation = Annotated[float, typer.Option(help="Share of the prompts that is kept for validation.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the split and of the fits.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads; torch's choice by default.")]


@app.command("judge")
def judge(
    out: Out,
    data: Annotated[Path | None, typer.Option(help="Folder that `lossy-assist mine` wrote.")] = None,
    annotations: Annotated[
        Path | None,
        typer.Option(
            help='Labels made by people instead of --data: JSON lines with "prompt", "response" and "spans", the '
            "pairs of start and end of the characters that matter in the response."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="The target, a folder or a Hub id: with --annotations, and with --data that were mined through an API."
        ),
    ] = None,
    assistant: Annotated[str | None, typer.Option(help="With --annotations, the draft: a folder or a Hub id.")] = None,
    task: Annotated[str | None, typer.Option(help="With --annotations, the task's name; the file's if none.")] = None,
    device: Annotated[str | None, typer.Option(help="With --annotations, where both models run.")] = None,
    pair: PairName = None,
    features: Annotated[
        Literal["draft", "previous", "both"],
        typer.Option(help="The state that has read the drafted token, the one that predicted it, or both."),
    ] = "draft",
    models: Annotated[Literal["target", "draft", "both"], typer.Option(help="Whose states the head reads.")] = "target",
    recall: Annotated[float, typer.Option(help="Share of important tokens that the threshold has to find.")] = 0.9,
    folds: Annotated[
        bool | None,
        typer.Option(
            "--folds/--no-folds",
            help="Also train a head for each fold of the data. By default for data that were not mined on a "
            "training split.",
        ),
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Also try other classifiers and other states.")] = False,
    license: License = None,
    validation: Validation = 0.1,
    seed: Seed = 0,
    threads: Threads = None,
) -> None:
    """Train a judge head, which tells whether a mismatch matters for the answer (AutoJudge).

    A logistic regression on standardised hidden states. Part of the prompts train; on the others its regularisation
    and its threshold are chosen. With --folds, OUT/fold-0, OUT/fold-1, … get heads that were trained
    on the other folds only, to be measured on the prompts of their own; the one in OUT is trained on all prompts.
    """
    from ..training.judge_training import JudgeSettings

    limit_threads(threads)
    disable_progress_bar()
    settings = JudgeSettings(models, features, recall, validation_share=validation, seed=seed)
    labels = Labels(data, annotations, model, assistant, task, device, pair)
    labels.check()
    screen = console()
    wanted = None if compare else settings.columns
    judged = labels.read_mined(wanted) if data is not None else from_annotations(labels, wanted, screen)
    judged = replace(judged, origin=carded(judged.origin, pair, license))
    _train_judge(judged, settings, _with_folds(judged, folds), out, screen)
    if compare:
        _compare(judged, settings, out, screen)


def _with_folds(judged: Judged, wanted: bool | None) -> bool:
    dealt = judged.folds is not None and len(set(judged.folds.tolist())) > 1
    if wanted and not dealt:
        raise LossyValueError("`--folds` needs data that were mined with `--folds` 2 or more, but these have no folds")
    if wanted is None:
        return dealt and judged.origin.data["settings"].get("split") != "train"
    return wanted


def _train_judge(judged: Judged, settings: JudgeSettings, folds: bool, out: Path, screen: Console) -> None:
    from ..training.judge_training import train_judge, train_judges_by_fold

    heads = 1 + (len(set(judged.folds.tolist())) if folds else 0)
    with progress(screen) as bar:
        fits = bar.add_task("logistic regressions", total=heads * len(settings.strengths))
        how = {"on_fit": lambda fit: bar.advance(fits)}
        if folds:
            by_fold = train_judges_by_fold(judged.examples, judged.folds, judged.origin, settings, **how)
            by_fold.save(out)
            trained = by_fold.final
        else:
            by_fold = None
            trained = train_judge(judged.examples, judged.origin, settings, **how)
            trained.save(out)
    config, metrics = trained.head.config, trained.head.config.metrics
    screen.print(recall_table(config))
    screen.print(
        f"{metrics['prompts']:,} prompts, {metrics['tokens']:,} mismatches, "
        f"{100 * metrics['important_share']:.1f} % important; reads {config.reads}"
    )
    screen.print(_area(metrics) + f"; C = {metrics['C']:g}")
    if by_fold is not None:
        screen.print(f"AUC {by_fold.auc:.4f} out of fold, over all prompts")
    if (few := round(metrics["validation_important_share"] * metrics["validation_tokens"])) < _ENOUGH:
        screen.print(
            f"note: the threshold rests on {few} important tokens of the validation prompts, which is little; mine "
            "more prompts, or keep more of them for validation with --validation",
            style="yellow",
        )
    screen.print(f"threshold {config.threshold:.6g}; saved in {out}")


def _area(metrics: dict[str, float]) -> str:
    return (
        f"AUC {metrics['auc']:.4f} on {metrics['validation_prompts']:,} validation prompts (95 % of bootstrap samples: "
        f"{metrics['auc_low']:.4f} to {metrics['auc_high']:.4f}), {metrics['train_auc']:.4f} on the others"
    )


def _compare(judged: Judged, settings: JudgeSettings, out: Path, screen: Console) -> None:
    from ..training.classifier_comparison import compare, count

    total = count(list(judged.examples.states), settings)
    with progress(screen) as bar:
        rows = list(bar.track(compare(judged.examples, settings), total=total, description="comparison"))
    text = json.dumps([asdict(row) for row in rows], indent=2, ensure_ascii=False)
    (out / COMPARISON).write_text(text + "\n", encoding="utf-8")
    own = len(settings.strengths) + 2
    screen.print(classifier_table(rows[:own]))
    screen.print(states_table(rows[own:]))


@app.command("verifier")
def verifier(
    data: Annotated[Path, typer.Option(help="Folder that `lossy-assist mine --labels ratio` wrote.")],
    out: Out,
    ratio: Annotated[
        float, typer.Option("--lambda", help="A token is acceptable iff q/p is at most this: 1.0, 1.2, 1.5, ….")
    ] = 1.0,
    position: Annotated[
        Literal["previous", "token"] | None,
        typer.Option(
            help="The draft's state that predicted the token, or the one that has read it; by default the better "
            "one on validation."
        ),
    ] = None,
    threshold: Annotated[
        float, typer.Option(min=0, max=1, help="A token is committed iff the head's probability is above this.")
    ] = 0.5,
    pair: PairName = None,
    license: License = None,
    validation: Validation = 0.1,
    seed: Seed = 0,
    threads: Threads = None,
) -> None:
    """Train a verifier head, which tells whether a drafted token needs the target's check (SPRINTER).

    A linear layer and a sigmoid on the draft's hidden state, fitted by binary cross-entropy and Adam to part of the
    prompts and stopped early on the others. The plot in OUT shows the ROC curves of λ = 1, 1.2 and 1.5.
    """
    from ..training.mined import read_ratios
    from ..training.verifier_training import RATIOS, VerifierSettings, train_verifier

    limit_threads(threads)
    disable_progress_bar()
    settings = VerifierSettings(ratio, position, threshold, validation_share=validation, seed=seed)
    screen = console()
    ratios, origin = read_ratios(data, settings.positions)
    origin = carded(origin, pair, license)
    with progress(screen) as bar:
        fits = bar.add_task("fits", total=len(settings.positions) + len({*RATIOS, ratio}) - 1)
        trained = train_verifier(ratios, origin, settings, on_fit=lambda fit: bar.advance(fits))
        trained.save(out)
    config, metrics = trained.head.config, trained.head.config.metrics
    screen.print(rate_table(config))
    screen.print(
        f"{metrics['prompts']:,} prompts, {metrics['tokens']:,} tokens, "
        f"{100 * metrics['acceptable_share']:.1f} % acceptable at λ = {ratio:g}"
    )
    screen.print(_area(metrics))
    screen.print("position: " + ", ".join(f"{fit.position} {fit.validation_auc:.3f}" for fit in trained.fits))
    screen.print("AUC over λ: " + ", ".join(f"{r:g} {fit.validation_auc:.3f}" for r, fit in trained.by_ratio.items()))
    screen.print(
        f"TPR {metrics['tpr']:.3f}, FPR {metrics['fpr']:.3f} at {threshold:g}; reads {config.reads}; saved in {out}"
    )
