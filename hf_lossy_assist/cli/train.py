"""``lossy-assist train judge`` and ``lossy-assist train verifier``: heads from labelled hidden states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from transformers.utils.logging import disable_progress_bar

from .. import pairs
from ..errors import LossyValueError
from ..evaluation.tables import Column, NumberTable, percent, table
from ..heads.identity import differing_models
from ..heads.judge_head import MODELS
from ..store.folder import write_json
from .console import CleanCommand, CleanGroup, Console, flattened, limit_threads, progress
from .models import ModelOptions, identity_of
from .options import TrainOptions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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


@dataclass(frozen=True, kw_only=True)
class JudgeOptions(TrainOptions):
    """The options of ``train judge``."""

    data: Annotated[
        list[Path] | None,
        typer.Option(
            help="Folder that `lossy-assist mine` wrote. Repeatable: other prompts of the same task and models."
        ),
    ] = None
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
        Literal["draft", "previous", "both"] | None,
        typer.Option(
            help="The state that has read the drafted token, the one that predicted it, or both; by default the better "
            "of the two, out of fold."
        ),
    ] = None
    models: Annotated[Literal["target", "draft", "both"], typer.Option(help="The models to read states of.")] = "target"
    recall: Annotated[float, typer.Option(help="Share of important tokens that the threshold has to find.")] = 0.9
    folds: Annotated[
        bool | None,
        typer.Option(
            "--folds/--no-folds",
            help="Also save the heads that have not seen one fold; by default unless the data come from a training "
            "split.",
        ),
    ] = None
    compare: Annotated[bool, typer.Option("--compare", help="Also try other classifiers and other states.")] = False

    def check(self) -> None:
        """Refuse options that conflict, before anything is loaded."""
        if bool(self.data) == (self.annotations is not None):
            raise LossyValueError("either `--data` or `--annotations` has to be given, and not both")
        models = {"--model": self.model, "--assistant": self.assistant}
        named = [name for name, value in models.items() if value is not None]
        if self.data:
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
        from ..training.examples import LabelledMismatch, read_together

        if self.data:
            # A target behind an API has no weights here, so its configuration is enough.
            return read_together(self.data, columns, self.model and identity_of("--model", self.model))
        annotations = read_annotations(self.annotations)
        loaded = ModelOptions(self.pair, self.model, self.assistant, device=self.device).load()
        models = loaded.by_role
        origin = origin_of(self.annotations, annotations, models, self.task or self.annotations.stem)
        roles = [role for role in MODELS if columns is None or any(c.startswith(f"{role}_") for c in columns)]
        with progress(screen) as bar:
            task = bar.add_task("responses", total=len(annotations))
            show = {"on_annotation": lambda done: bar.update(task, completed=done)}
            readers = {role: models[role] for role in roles}
            return LabelledMismatch(annotated_examples(annotations, loaded.tokenizer, readers, **show), origin)


@app.command("judge", cls=CleanCommand)
@flattened
def judge(options: JudgeOptions) -> None:
    """Train a judge head, which tells whether a mismatch matters for the answer (AutoJudge).

    The head is a logistic regression on standardised hidden states, fitted to all prompts. Its figures and thresholds
    are out of fold: each prompt is judged by a head that has not seen it. With --folds, these heads are kept in
    OUT/fold-0, OUT/fold-1, …, to be measured on their own fold; their figures are those of the other folds.
    """
    from ..training.examples import check
    from ..training.judge_training import JudgeSettings

    limit_threads(options.threads)
    disable_progress_bar()
    settings = JudgeSettings(options.models, options.features, options.recall, seed=options.seed)
    options.check()
    screen = Console()
    judged = options.read(None if options.compare else settings.columns, screen)
    if options.compare:  # reads more states than the head
        check(judged.examples)
    judged = replace(judged, origin=_carded(judged.origin, options))
    _train_judge(judged, settings, options, screen)


def _folds(judged: LabelledMismatch, wanted: bool | None) -> tuple[NDArray[np.int64] | None, bool]:
    """Return the data's folds if their heads are to be saved, and whether they are."""
    dealt = judged.folds if judged.folds is not None and len(set(judged.folds.tolist())) > 1 else None
    if wanted and dealt is None:
        raise LossyValueError(
            "`--folds` needs one `--data` that was mined with `--folds` 2 or more; leave out `--folds`"
        )
    if wanted is None:
        wanted = dealt is not None and judged.origin.data["settings"].get("split") != "train"
    return dealt if wanted else None, wanted


def _train_judge(judged: LabelledMismatch, settings: JudgeSettings, options: JudgeOptions, screen: Console) -> None:
    from ..training.judge_training import compare, train_judge, trials
    from ..training.validation import FOLDS

    (folds, saved), out, examples = _folds(judged, options.folds), options.out, judged.examples
    parts = FOLDS if folds is None else len(set(folds.tolist()))
    with progress(screen) as bar:
        fits = bar.add_task("logistic regressions", total=parts * len(settings.strengths) * len(settings.choices) + 1)
        trained = train_judge(examples, judged.origin, settings, folds=folds, on_fit=lambda: bar.advance(fits))
        trained.save(out, folds=saved)
    config, metrics = trained.head.config, trained.head.config.metrics
    shares = {"important found (%)": "recall", "mismatches skipped (%)": "skipped"}
    screen.print(_threshold_table(config, "Thresholds, out of fold", ".6g", shares))
    screen.print(
        f"{metrics['prompts']:,} prompts, {metrics['tokens']:,} mismatches, "
        f"{100 * metrics['important_share']:.1f} % important; reads {config.reads}"
    )
    if "auc_solved" in metrics:
        screen.print(
            f"{_area(metrics, 'auc_solved')} out of fold, on {metrics['solved_prompts']:,} prompts that the target "
            "solves"
        )
    _print_areas(metrics, settings.choices, screen)
    if (few := int(examples.labels.sum())) < _ENOUGH:
        screen.print(f"note: the threshold depends on only {few} important tokens; mine more prompts", style="yellow")
    screen.print(f"threshold {config.threshold:.6g}; C = {metrics['C']:g}; saved in {out}")
    if not options.compare:
        return
    with progress(screen) as bar:
        tried = bar.track(trials(examples, trained, settings), description="comparison")
        rows = list(compare(examples, trained, settings, tried))
    write_json(out / COMPARISON, [asdict(row) for row in rows])
    # As in figures 6 and 7 of the AutoJudge paper: classifiers on the same states, then one on all choices of states.
    columns: dict[str, Column] = {
        "classifier": lambda row: row.classifier,
        "position": lambda row: row.positions,
        "model": lambda row: row.models,
        "AUC": lambda row: f"{row.auc:.4f}",
        "against the head": lambda row: f"{row.gain:+.4f} ({row.gain_low:+.4f} … {row.gain_high:+.4f})",
        "seconds": lambda row: f"{row.seconds:.2f}",
    }
    screen.print(table(rows, columns, "Classifiers and states, out of fold"))


def _print_areas(metrics: Mapping[str, float], choices: Sequence[str], screen: Console) -> None:
    screen.print(f"{_area(metrics)} out of fold, on all prompts; {metrics['train_auc']:.4f} on what the head has seen")
    if "auc_gain" in metrics:
        states = ", ".join(f"{metrics[f'auc_{name}']:.4f} for {name!r}" for name in choices)
        screen.print(f"AUC by state: {states}; the better one's gain {_area(metrics, 'auc_gain', '')}")
    curve = {name.split("_")[2]: value for name, value in metrics.items() if name.startswith("auc_from_")}
    if curve:
        screen.print("AUC by prompts seen: " + ", ".join(f"{n} {value:.4f}" for n, value in curve.items()))


def _area(metrics: Mapping[str, float], name: str = "auc", label: str = "AUC ") -> str:
    return f"{label}{metrics[name]:.4f} ({metrics[f'{name}_low']:.4f} … {metrics[f'{name}_high']:.4f})"


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
            "one out of fold."
        ),
    ] = None
    threshold: Annotated[
        float, typer.Option(min=0, max=1, help="A token is committed iff the head's probability is above this.")
    ] = 0.5
    recall: Annotated[
        float | None, typer.Option(help="Share of acceptable tokens that the threshold has to commit, instead of it.")
    ] = None


@app.command("verifier", cls=CleanCommand)
@flattened
def verifier(options: VerifierOptions) -> None:
    """Train a verifier head, which tells whether a drafted token needs the target's check (SPRINTER).

    The head is a linear layer and a sigmoid on the draft's hidden state, trained by binary cross-entropy and Adam, and
    stopped early. Its figures and thresholds are out of fold: each prompt is judged by a head that has not seen it. The
    plot in OUT shows the ROC curves of λ = 1, 1.2 and 1.5.
    """
    from ..training.examples import read_ratios
    from ..training.validation import FOLDS
    from ..training.verifier_training import RATIOS, VerifierSettings, train_verifier

    limit_threads(options.threads)
    disable_progress_bar()
    settings = VerifierSettings(options.ratio, options.position, options.threshold, options.recall, seed=options.seed)
    screen, out = Console(), options.out
    ratios, origin = read_ratios(options.data, settings.positions)
    origin = _carded(origin, options)
    with progress(screen) as bar:
        crossed = len(settings.positions) + len({*RATIOS, options.ratio}) - 1
        fits = bar.add_task("fits", total=FOLDS * crossed + 1)
        trained = train_verifier(ratios, origin, settings, on_fit=lambda: bar.advance(fits))
        trained.save(out)
    config, metrics = trained.head.config, trained.head.config.metrics
    title = f"Thresholds at λ = {config.ratio:g}, out of fold"
    screen.print(_threshold_table(config, title, ".6g", {"TPR (%)": "tpr", "FPR (%)": "fpr"}))
    screen.print(
        f"{metrics['prompts']:,} prompts, {metrics['tokens']:,} tokens, "
        f"{100 * metrics['acceptable_share']:.1f} % acceptable at λ = {config.ratio:g}"
    )
    _print_areas(metrics, settings.positions, screen)
    areas = {name.removeprefix("auc_lambda_"): x for name, x in metrics.items() if name.startswith("auc_lambda_")}
    screen.print("AUC over λ: " + ", ".join(f"{ratio} {area:.3f}" for ratio, area in areas.items()))
    screen.print(f"TPR {metrics['tpr']:.3f}, FPR {metrics['fpr']:.3f} at {config.threshold:.6g}; saved in {out}")
