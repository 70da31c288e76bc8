"""``lossy-assist train judge`` and ``lossy-assist train verifier``: heads from labelled hidden states."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from transformers.utils.logging import disable_progress_bar

from .. import pairs
from ..errors import LossyValueError
from ..evaluation.tables import Column, NumberTable, percent, table
from ..heads.identity import differing_models
from ..heads.judge_head import MODELS
from .console import CleanCommand, CleanGroup, flattened, limit_threads, progress
from .models import ModelOptions, identity_of
from .options import TrainOptions

if TYPE_CHECKING:
    from ..heads import JudgeConfig, VerifierConfig
    from ..training.examples import LabelledMismatch
    from ..training.judge_training import JudgeSettings
    from ..training.saving import Origin

COMPARISON = "comparison.json"

# With fewer important tokens, the standard error of a recall of 0.9 is above 3 points.
_ENOUGH = 100

app = typer.Typer(
    name="train",
    cls=CleanGroup,
    add_completion=False,
    help="Train heads from labelled data.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Validation = Annotated[float, typer.Option(help="Share of the prompts that is kept for validation.")]


@dataclass(frozen=True, kw_only=True)
class JudgeOptions(TrainOptions):
    """The options of ``train judge``."""

    data: Annotated[Path | None, typer.Option(help="Folder that `lossy-assist mine` wrote.")] = None
    annotations: Annotated[
        Path | None,
        typer.Option(
            help='Labels made by people instead of --data: JSON lines with "prompt", "response" and "spans", the '
            "[start, end] of the characters that matter in the response."
        ),
    ] = None
    model: Annotated[
        str | None,
        typer.Option(help="The target, a folder or a Hub id: with --annotations, or with --data mined through an API."),
    ] = None
    assistant: Annotated[str | None, typer.Option(help="With --annotations, the draft: a folder or a Hub id.")] = None
    task: Annotated[str | None, typer.Option(help="With --annotations, the task; the file's name by default.")] = None
    device: Annotated[str | None, typer.Option(help="With --annotations, where both models run.")] = None
    features: Annotated[
        Literal["draft", "previous", "both"],
        typer.Option(help="The state that has read the drafted token, the one that predicted it, or both."),
    ] = "draft"
    models: Annotated[Literal["target", "draft", "both"], typer.Option(help="The models to read states of.")] = "target"
    recall: Annotated[float, typer.Option(help="Share of important tokens that the threshold has to find.")] = 0.9
    folds: Annotated[
        bool | None,
        typer.Option(
            "--folds/--no-folds",
            help="Also train a head for each fold of the data; by default unless they come from a training split.",
        ),
    ] = None
    compare: Annotated[bool, typer.Option("--compare", help="Also try other classifiers and other states.")] = False
    validation: Validation = 0.1

    def check(self) -> None:
        """Refuse options that conflict, before anything is loaded."""
        if (self.data is None) == (self.annotations is None):
            raise LossyValueError("either `--data` or `--annotations` has to be given, and not both")
        models = {"--model": self.model, "--assistant": self.assistant}
        named = [name for name, value in models.items() if value is not None]
        if self.data is not None:
            others = {"--assistant": self.assistant, "--task": self.task, "--device": self.device}
            if given := [name for name, value in others.items() if value is not None]:
                raise LossyValueError(f"{', '.join(given)} can't be given with `--data`, which has them already")
        elif (self.pair is None) == (not named) or len(named) == 1:
            raise LossyValueError(
                "with `--annotations`, `--model` and `--assistant` have to be given, or `--pair` instead, but got "
                f"{named + ['--pair'] * (self.pair is not None) or 'none of them'}"
            )

    def read(self, columns: Sequence[str] | None, screen: Console) -> LabelledMismatch:
        """Read the labels with the states in ``columns``, for which models read annotated responses first."""
        from ..training.annotations import annotated_examples, origin_of, read_annotations
        from ..training.examples import LabelledMismatch, read_judged

        if self.data is not None:
            # A target behind an API has no weights here, so its configuration is enough.
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
            return LabelledMismatch(annotated_examples(annotations, loaded.tokenizer, readers, **show), None, origin)


@app.command("judge", cls=CleanCommand)
@flattened
def judge(options: JudgeOptions) -> None:
    """Train a judge head, which tells whether a mismatch matters for the answer (AutoJudge).

    The head is a logistic regression on standardised hidden states. Held-out prompts choose its regularisation and its
    threshold. With --folds, OUT/fold-0, OUT/fold-1, … get heads that were trained on the other folds, to be measured on
    their own fold; the head in OUT is trained on all prompts.
    """
    from ..training.judge_training import JudgeSettings

    limit_threads(options.threads)
    disable_progress_bar()
    settings = JudgeSettings(
        options.models, options.features, options.recall, validation_share=options.validation, seed=options.seed
    )
    options.check()
    screen = Console()
    judged = options.read(None if options.compare else settings.columns, screen)
    judged = replace(judged, origin=_carded(judged.origin, options))
    _train_judge(judged, settings, _with_folds(judged, options.folds), options.out, screen)
    if options.compare:
        _compare(judged, settings, options.out, screen)


def _with_folds(judged: LabelledMismatch, wanted: bool | None) -> bool:
    dealt = judged.folds is not None and len(set(judged.folds.tolist())) > 1
    if wanted and not dealt:
        raise LossyValueError("`--folds` needs data that were mined with `--folds` 2 or more, but these have no folds")
    if wanted is None:
        return dealt and judged.origin.data["settings"].get("split") != "train"
    return wanted


def _train_judge(judged: LabelledMismatch, settings: JudgeSettings, folds: bool, out: Path, screen: Console) -> None:
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
            f"note: the threshold depends on only {few} important tokens of the validation prompts; mine more prompts, "
            "or keep more of them for validation with --validation",
            style="yellow",
        )
    screen.print(f"threshold {config.threshold:.6g}; saved in {out}")


def _area(metrics: dict[str, float]) -> str:
    return (
        f"AUC {metrics['auc']:.4f} on {metrics['validation_prompts']:,} validation prompts (95 % of bootstrap samples: "
        f"{metrics['auc_low']:.4f} to {metrics['auc_high']:.4f}), {metrics['train_auc']:.4f} on the others"
    )


def _compare(judged: LabelledMismatch, settings: JudgeSettings, out: Path, screen: Console) -> None:
    from ..training.judge_training import compare, count

    total = count(list(judged.examples.states), settings)
    with progress(screen) as bar:
        rows = list(bar.track(compare(judged.examples, settings), total=total, description="comparison"))
    text = json.dumps([asdict(row) for row in rows], indent=2, ensure_ascii=False)
    (out / COMPARISON).write_text(text + "\n", encoding="utf-8")
    own = len(settings.strengths) + 2
    # As in figures 6 and 7 of the AutoJudge paper: classifiers on the same states, then one on all choices of states.
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


def _carded(origin: Origin, options: TrainOptions) -> Origin:
    """Add license and pair to an origin, for the card; refuse a pair that the data do not come from."""
    card: dict[str, Any] = {} if options.license is None else {"license": options.license}
    if (pair := options.pair) is not None:
        loaded = pairs.load(pair)
        if found := differing_models(vars(origin), {"target": loaded.target, "draft": loaded.draft}):
            raise LossyValueError(
                f"`--pair` has to be the pair that the data come from, but {pair!r} differs: {'; '.join(found)}"
            )
        card["pair"] = pair
    return replace(origin, card=card)


def _threshold_table(
    config: JudgeConfig | VerifierConfig, title: str, digits: str, shares: dict[str, str]
) -> NumberTable:
    """Lay out a head's thresholds and their effects; mark the chosen one."""

    def share(name: str) -> Column:
        return lambda row: percent(getattr(row, name), 1)

    def threshold(row: Any) -> str:
        return f"{row.threshold:{digits}}" + " ←" * (row.threshold == config.threshold)

    columns = {"threshold": threshold, **{heading: share(name) for heading, name in shares.items()}}
    return table(config.thresholds, columns, title)


@dataclass(frozen=True, kw_only=True)
class VerifierOptions(TrainOptions):
    """The options of ``train verifier``."""

    data: Annotated[Path, typer.Option(help="Folder that `lossy-assist mine --labels ratio` wrote.")]
    ratio: Annotated[
        float, typer.Option("--lambda", help="A token is acceptable iff q/p is at most this: 1.0, 1.2, 1.5, ….")
    ] = 1.0
    position: Annotated[
        Literal["previous", "token"] | None,
        typer.Option(
            help="The draft's state that predicted the token, or the one that has read it; by default the better "
            "one on validation."
        ),
    ] = None
    threshold: Annotated[
        float, typer.Option(min=0, max=1, help="A token is committed iff the head's probability is above this.")
    ] = 0.5
    validation: Validation = 0.1


@app.command("verifier", cls=CleanCommand)
@flattened
def verifier(options: VerifierOptions) -> None:
    """Train a verifier head, which tells whether a drafted token needs the target's check (SPRINTER).

    The head is a linear layer and a sigmoid on the draft's hidden state, trained by binary cross-entropy and Adam, and
    stopped early on held-out prompts. The plot in OUT shows the ROC curves of λ = 1, 1.2 and 1.5.
    """
    from ..training.examples import read_ratios
    from ..training.verifier_training import RATIOS, VerifierSettings, train_verifier

    limit_threads(options.threads)
    disable_progress_bar()
    ratio, threshold, out = options.ratio, options.threshold, options.out
    settings = VerifierSettings(
        ratio, options.position, threshold, validation_share=options.validation, seed=options.seed
    )
    screen = Console()
    ratios, origin = read_ratios(options.data, settings.positions)
    origin = _carded(origin, options)
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
