"""Training of judge heads from labelled mismatches, and comparison with other classifiers and other states."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from ..errors import LossyValueError
from ..heads import JudgeHead, ThresholdRow, columns
from ..heads.judge_head import MODELS, POSITIONS
from ..values import Checked, Rule
from .examples import Examples, check
from .saving import Curve, Origin, save_with_roc
from .validation import RECALLS, Share, both_classes, largest_threshold, metrics_of, recall_rows, validation_mask

STRENGTHS = tuple(10.0**-k for k in range(7, -1, -1))
"""The grid of scikit-learn's ``C``, from the strongest regularisation to the weakest."""

MAX_ITER = 500  # from appendix B of the AutoJudge paper; all else is scikit-learn's default


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted pipeline of a standardisation and a classifier.

    ``train`` and ``validation`` are its probabilities ``(N,)`` of the True class on both sets.
    """

    classifier: Pipeline
    label: str
    train: NDArray[np.floating]
    validation: NDArray[np.floating]
    train_auc: float
    validation_auc: float
    seconds: float


def fit(classifier: Any, label: str, columns: Sequence[str], train: Examples, validation: Examples) -> Fit:
    pipeline = make_pipeline(StandardScaler(), classifier)
    start = time.perf_counter()
    with warnings.catch_warnings():
        # A fit that reaches the paper's limit of iterations is validated like any other.
        warnings.simplefilter("ignore", ConvergenceWarning)
        pipeline.fit(train.features(columns), train.labels)
    seconds = time.perf_counter() - start
    sides = (train, validation)
    scores = [pipeline.predict_proba(side.features(columns))[:, 1] for side in sides]
    areas = (float(roc_auc_score(side.labels, p)) for side, p in zip(sides, scores, strict=True))
    return Fit(pipeline, label, *scores, *areas, seconds)


def fit_logistic(
    columns: Sequence[str],
    train: Examples,
    validation: Examples,
    *,
    strengths: Sequence[float] = STRENGTHS,
    on_fit: Callable[[Fit], None] = lambda fit: None,
) -> list[Fit]:
    """Fit a logistic regression with L2 regularisation for each strength, scikit-learn's ``C``.

    Garipov et al. 2025 (AutoJudge), section 4.1 and appendix B.
    """
    fits = []
    for strength in strengths:
        regression = LogisticRegression(C=strength, max_iter=MAX_ITER)
        fits.append(fit(regression, f"logistic regression, C = {strength:g}", columns, train, validation))
        on_fit(fits[-1])
    return fits


def best(fits: Sequence[Fit]) -> Fit:
    """Return the fit with the highest validation AUC, the first among equals."""
    return max(fits, key=lambda fit: fit.validation_auc)


@dataclass(frozen=True)
class JudgeSettings(Checked):
    """Settings for training a judge head; ``models`` and ``positions`` are those of :func:`.heads.columns`."""

    models: str = "target"
    positions: str = "draft"
    # The share of important validation tokens that the default threshold has to find.
    recall: Annotated[float, Rule("above 0 and at most 1", lambda x: 0 < x <= 1)] = 0.9
    validation_share: Share = 0.1  # the share of the prompts that is kept for validation
    strengths: tuple[float, ...] = STRENGTHS  # the grid of scikit-learn's ``C``
    seed: int = 0  # of the split

    def __post_init__(self) -> None:
        super().__post_init__()
        columns(self.models, self.positions)

    @property
    def columns(self) -> list[str]:
        return columns(self.models, self.positions)


@dataclass(frozen=True, eq=False)
class TrainedJudge:
    """A judge head, all fitted logistic regressions, and both sides of the split."""

    head: JudgeHead
    fits: tuple[Fit, ...]
    train: Examples
    validation: Examples

    def save(self, folder: Path) -> None:
        """Write the head, its model card and its ROC curves into ``folder``."""
        chosen = best(self.fits)
        curves = [
            Curve("validation", self.validation.labels, chosen.validation),
            Curve("training", self.train.labels, chosen.train, style=":"),
        ]
        shares = {"positive": "important tokens found", "others": "unimportant tokens taken for important"}
        save_with_roc(self.head, folder, curves, **shares)


def train_judge(
    examples: Examples,
    origin: Origin,
    settings: JudgeSettings = JudgeSettings(),
    *,
    on_fit: Callable[[Fit], None] = lambda fit: None,
    **notes: Any,
) -> TrainedJudge:
    """Train a judge head: a standardisation and a logistic regression, folded into one weight and one bias.

    Garipov et al. 2025 (AutoJudge), section 4.1 and appendix B. The validation prompts choose the regularisation by
    ROC-AUC and the thresholds with the folded head. ``on_fit`` is called after each logistic regression; ``notes`` go
    into the head's provenance.
    """
    train, validation = split(examples.only(settings.columns), settings)
    fits = fit_logistic(settings.columns, train, validation, strengths=settings.strengths, on_fit=on_fit)
    chosen = best(fits)
    fields = origin.config_fields(asdict(settings), **notes)
    scaler, regression = chosen.classifier[0], chosen.classifier[-1]
    head = JudgeHead.from_linear(
        regression.coef_, regression.intercept_, mean=scaler.mean_, scale=scaler.scale_,
        models=settings.models, positions=settings.positions, threshold=0.5, **fields,
    )  # fmt: skip
    # Measure the head as it is saved: folded, in float32.
    on_training, on_validation = (probabilities(head, side) for side in (train, validation))
    threshold = largest_threshold(validation.labels, on_validation, settings.recall)
    rows = recall_rows(validation.labels, on_validation, sorted({*RECALLS, settings.recall}))
    metrics = metrics_of(
        examples, validation, on_validation, seed=settings.seed,
        train_auc=float(roc_auc_score(train.labels, on_training)),
        C=float(regression.C),
        recall=float((on_validation[validation.labels] >= threshold).mean()),
        skipped=float((on_validation < threshold).mean()),
    )  # fmt: skip
    head.config = replace(
        head.config, threshold=threshold, thresholds=tuple(ThresholdRow(*row) for row in rows), metrics=metrics
    )
    return TrainedJudge(head, tuple(fits), train, validation)


def split(examples: Examples, settings: JudgeSettings) -> tuple[Examples, Examples]:
    """Return the training and the validation side, which depend on examples and settings alone."""
    check(examples)
    mask = validation_mask(examples.labels, examples.prompts, share=settings.validation_share, seed=settings.seed)
    return examples.where(~mask), examples.where(mask)


def probabilities(head: JudgeHead, examples: Examples) -> NDArray[np.float32]:
    return head.probability(torch.from_numpy(examples.features(head.config.columns))).numpy()


@dataclass(frozen=True, eq=False)
class JudgesByFold:
    """A head trained on all folds, and for each fold a head trained on the others.

    ``auc`` is the out-of-fold ROC-AUC: the mean over folds, weighted by their pairs of an important and an unimportant
    token. Each head has its own threshold, so their probabilities are not compared.
    """

    final: TrainedJudge
    by_fold: dict[int, TrainedJudge]
    auc: float

    def save(self, folder: Path) -> None:
        """Write the final head into ``folder``, and the others into its subfolders ``fold-0``, ``fold-1``, …."""
        for fold, trained in self.by_fold.items():
            trained.save(folder / f"fold-{fold}")
        self.final.save(folder)


def train_judges_by_fold(
    examples: Examples,
    folds: NDArray[np.int64],
    origin: Origin,
    settings: JudgeSettings = JudgeSettings(),
    *,
    on_fit: Callable[[Fit], None] = lambda fit: None,
) -> JudgesByFold:
    """Train a head for each fold on the other folds, and a final one on all of them.

    Garipov et al. 2025 (AutoJudge), section 4.2: LiveCodeBench has no training split, so each fold is evaluated with a
    head that has not seen it. Each head chooses its regularisation and threshold on its own training folds.
    """
    numbers = [int(fold) for fold in np.unique(folds)]
    if len(numbers) < 2:
        raise LossyValueError(f"`folds` has to name two folds or more, but names {numbers}")
    examples = examples.only(settings.columns)
    by_fold, areas, pairs = {}, [], []
    for fold in numbers:
        left_out = examples.where(folds == fold)
        trained = train_judge(examples.where(folds != fold), origin, settings, on_fit=on_fit, left_out_fold=fold)
        by_fold[fold] = trained
        if both_classes(left_out.labels):
            areas.append(roc_auc_score(left_out.labels, probabilities(trained.head, left_out)))
            pairs.append(left_out.labels.sum() * (~left_out.labels).sum())
    if not pairs:
        raise LossyValueError("`folds` have to have tokens of both classes, but each has one only; mine more prompts")
    final = train_judge(examples, origin, settings, on_fit=on_fit)
    auc = float(np.average(areas, weights=pairs))
    config = final.head.config
    final.head.config = replace(config, metrics={**config.metrics, "out_of_fold_auc": auc})
    return JudgesByFold(final, by_fold, auc)


# The paper's "both" are the draft's and the target's token; a head can't read the latter, which is known too late.
TOKENS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("previous", ("previous",)),
    ("draft", ("draft",)),
    ("both", POSITIONS),
    ("target", ("target",)),
    ("draft + target", ("draft", "target")),
)


@dataclass(frozen=True)
class Compared:
    """One classifier on one choice of states, with its ROC-AUCs and the seconds of the fit."""

    classifier: str
    models: str
    positions: str
    train_auc: float
    validation_auc: float
    seconds: float


def variants(available: Sequence[str]) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return models, positions and columns of every choice of states that the available columns allow."""
    found = []
    for positions, tokens in TOKENS:
        for models, chosen in (*((model, (model,)) for model in MODELS), ("both", MODELS)):
            columns = tuple(f"{model}_{token}" for model in chosen for token in tokens)
            if set(columns) <= set(available):
                found.append((models, positions, columns))
    return found


def compare(examples: Examples, settings: JudgeSettings) -> Iterator[Compared]:
    """Compare classifiers on the chosen states, and logistic regressions on every choice of states.

    Garipov et al. 2025 (AutoJudge), appendix B, figures 6 and 7. The split is that of :func:`train_judge`.
    First come the logistic regressions of all strengths, the random forest and the perceptron, then the best logistic
    regression on every choice of states.
    """
    train, validation = split(examples, settings)
    columns = settings.columns

    def row(fit: Fit, models: str, positions: str, seconds: float) -> Compared:
        return Compared(fit.label, models, positions, fit.train_auc, fit.validation_auc, seconds)

    for strength in settings.strengths:
        (fitted,) = fit_logistic(columns, train, validation, strengths=[strength])
        yield row(fitted, settings.models, settings.positions, fitted.seconds)
    # From appendix B: 128 trees, each leaf with 0.1 % of the tokens or more; 128 ReLU units in one hidden layer,
    # stopped early on a tenth of the training set. All else is scikit-learn's default.
    others = {
        "random forest, 128 trees": RandomForestClassifier(128, min_samples_leaf=0.001, random_state=settings.seed),
        "MLP, 128 hidden units": MLPClassifier((128,), early_stopping=True, random_state=settings.seed),
    }
    for label, classifier in others.items():
        fitted = fit(classifier, label, columns, train, validation)
        yield row(fitted, settings.models, settings.positions, fitted.seconds)
    for models, positions, states in variants(list(examples.states)):
        fits = fit_logistic(states, train, validation, strengths=settings.strengths)
        yield row(best(fits), models, positions, sum(fit.seconds for fit in fits))


def count(available: Sequence[str], settings: JudgeSettings) -> int:
    """Return the number of rows that :func:`compare` yields."""
    return len(settings.strengths) + 2 + len(variants(available))
