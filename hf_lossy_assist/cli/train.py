"""``lossy-assist train judge`` and ``lossy-assist train verifier``: heads from labelled hidden states."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table
from transformers.utils.logging import disable_progress_bar

from .. import pairs
from ..errors import LossyValueError
from ..heads.judge_head import MODELS
from . import train_drafts
from .console import limit_threads, progress
from .models import ModelOptions, identity_of
from .options import Threads
from .rendering import Column, percent, table

if TYPE_CHECKING:
    from ..heads import JudgeConfig, VerifierConfig
    from ..training.judge_training import JudgeSettings
    from ..training.mined import Judged
    from ..training.provenance import Origin

COMPARISON = "comparison.json"

# With fewer, a recall of 0.9 is known to worse than 6 points (one standard error of 3).
_ENOUGH = 100

app = typer.Typer(
    name="train",
    add_completion=False,
    help="Train heads from labelled data, and drafts for a target.",
    no_args_is_help=True,
)

Out = Annotated[Path, typer.Option(help="Folder for the head.")]
PairName = Annotated[str | None, typer.Option(help="The bundled pair that the models are.")]
License = Annotated[str | None, typer.Option(help="The head's license, as the Hub calls it, for its card.")]
Validation = Annotated[float, typer.Option(help="Share of the prompts that is kept for validation.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the split and of the fits.")]


@dataclass(frozen=True)
class Labels:
    """The options that say where labels of mismatches come from, which the command's help explains."""

    data: Path | None
    annotations: Path | None
    model: str | None
    assistant: str | None
    task: str | None
    device: str | None
    pair: str | None

    def check(self) -> None:
        """Refuse what does not go together, before anything is loaded."""
        if (self.data is None) == (self.annotations is None):
            raise LossyValueError("either `--data` or `--annotations` has to be given, and not both")
        models = {"--model": self.model, "--assistant": self.assistant}
        named = [name for name, value in models.items() if value is not None]
        if self.data is not None:
            others = {"--assistant": self.assistant, "--task": self.task, "--device": self.device}
            if given := [name for name, value in others.items() if value is not None]:
                raise LossyValueError(f"{', '.join(given)} can't be given with `--data`, which knows all that itself")
        elif (self.pair is None) == (not named) or len(named) == 1:
            raise LossyValueError(
                "with `--annotations`, `--model` and `--assistant` have to be given, or `--pair` instead, but got "
                f"{named + ['--pair'] * (self.pair is not None) or 'none of them'}"
            )

    def read(self, columns: Sequence[str] | None, screen: Console) -> Judged:
        """Read the labels with the states that are wanted; annotated responses are read by the models."""
        from ..training.annotations import annotated_examples, origin_of, read_annotations
        from ..training.mined import Judged, read_judged

        if self.data is not None:
            # Of a target that was behind an API, its configuration has to do.
            return read_judged(self.data, columns, self.model and identity_of("--model", self.model))
        annotations = read_annotations(self.annotations)
        loaded = ModelOptions(self.pair, self.model, self.assistant, device=self.device).load()
        models = loaded.by_role
        origin = origin_of(self.annotations, annotations, models, self.task or self.annotations.stem)
        roles = [role for role in MODELS if columns is None or any(c.startswith(f"{role}_") for c in columns)]
        with progress(screen) as bar:
            task = bar.add_task("responses", total=len(annotations))
            show = {"on_annotation": lambda done: bar.update(task, completed=done)}
            readers = {role: models[role] for role in roles}
            return Judged(annotated_examples(annotations, loaded.tokenizer, readers, **show), None, origin)


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
    screen = Console()
    wanted = None if compare else settings.columns
    judged = labels.read(wanted, screen)
    judged = replace(judged, origin=_carded(judged.origin, pair, license))
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
    shares = {"important found (%)": "recall", "mismatches skipped (%)": "skipped"}
    screen.print(_threshold_table(config, "Thresholds, on validation", ".6g", shares))
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
    # As in figures 6 and 7 of the AutoJudge paper: classifiers on the same states, and one on all choices of states.
    columns: dict[str, Column] = {
        "classifier": lambda row: row.classifier,
        "AUC, validation": lambda row: f"{row.validation_auc:.4f}",
        "AUC, training": lambda row: f"{row.train_auc:.4f}",
        "seconds": lambda row: f"{row.seconds:.2f}",
    }
    states = f"{rows[0].positions} position, {rows[0].models} model" + "s" * (rows[0].models == "both")
    screen.print(table(rows[:own], columns, f"Classifiers ({states})"))
    by_states = {(row.positions, row.models): f"{row.validation_auc:.4f}" for row in rows[own:]}
    columns = {"position": str}
    for model in dict.fromkeys(row.models for row in rows[own:]):
        columns[model] = lambda position, model=model: by_states.get((position, model), "")
    positions = dict.fromkeys(row.positions for row in rows[own:])
    screen.print(table(positions, columns, "Logistic regression, AUC on validation, by model"))


def _carded(origin: Origin, pair: str | None, license: str | None) -> Origin:
    """Return an origin with what a model card is to say besides; refuse a pair that the data do not come from."""
    card: dict[str, Any] = {} if license is None else {"license": license}
    if pair is not None:
        loaded = pairs.load(pair)
        for role, identity, model in (("target", origin.target, loaded.target), ("draft", origin.draft, loaded.draft)):
            if found := identity.differences(model):
                raise LossyValueError(
                    f"`--pair` has to be the pair that the data come from, but of the {role} of {pair!r}, "
                    f"{'; '.join(found)}"
                )
        card["pair"] = pair
    return replace(origin, card=card)


def _threshold_table(config: JudgeConfig | VerifierConfig, title: str, digits: str, shares: dict[str, str]) -> Table:
    """Lay out a head's thresholds with what each gives; the chosen one is marked."""

    def share(name: str) -> Column:
        return lambda row: percent(getattr(row, name), 1)

    def threshold(row: Any) -> str:
        return f"{row.threshold:{digits}}" + " ←" * (row.threshold == config.threshold)

    columns = {"threshold": threshold, **{heading: share(name) for heading, name in shares.items()}}
    return table(config.thresholds, columns, title)


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
    screen = Console()
    ratios, origin = read_ratios(data, settings.positions)
    origin = _carded(origin, pair, license)
    with progress(screen) as bar:
        fits = bar.add_task("fits", total=len(settings.positions) + len({*RATIOS, ratio}) - 1)
        trained = train_verifier(ratios, origin, settings, on_fit=lambda fit: bar.advance(fits))
        trained.save(out)
    config, metrics = trained.head.config, trained.head.config.metrics
    title = f"Thresholds at λ = {config.ratio:g}, on validation"
    screen.print(_threshold_table(config, title, ".2f", {"TPR (%)": "tpr", "FPR (%)": "fpr"}))
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


app.command("eagle3")(train_drafts.eagle3)
app.command("assistant")(train_drafts.assistant)
