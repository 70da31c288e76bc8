"""Training of judge heads from labelled mismatches, and comparison with other classifiers and other states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline

from ..errors import LossyValueError
from ..heads import JudgeHead, ThresholdRow, columns, fold
from ..heads.judge_head import MODELS, POSITIONS
from ..values import Checked, Rule
from .crossing import better, cross, draws_of, fit, learning_curve
from .examples import Examples, check
from .saving import Curve, Origin, save_with_roc
from .validation import RECALLS, area_of, both_classes, deal, interval, largest_threshold, recall_rows

STRENGTHS = tuple(10.0**-k for k in range(7, -1, -1))
"""The grid of scikit-learn's ``C``, from the strongest regularisation to the weakest."""

RANKS = (64, 128, 256)
"""The numbers of principal components that are compared."""

MAX_ITER = 500  # from appendix B of the AutoJudge paper; all else is scikit-learn's default


def regressions(strengths: Sequence[float]) -> list[LogisticRegression]:
    """Return logistic regressions with L2 regularisation, one for each strength, scikit-learn's ``C``."""
    return [LogisticRegression(C=strength, max_iter=MAX_ITER) for strength in strengths]


@dataclass(frozen=True)
class JudgeSettings(Checked):
    """Settings for training a judge head; ``models`` and ``positions`` are those of :func:`.heads.columns`."""

    models: str = "target"
    positions: str | None = None  # None: "previous" or "draft", whichever is better out of fold
    # The share of important tokens that the default threshold has to find, out of fold.
    recall: Annotated[float, Rule("above 0 and at most 1", lambda x: 0 < x <= 1)] = 0.9
    strengths: tuple[float, ...] = STRENGTHS  # the grid of scikit-learn's ``C``
    seed: int = 0  # of the folds and of the learning curve

    def __post_init__(self) -> None:
        super().__post_init__()
        columns(self.models, "both" if self.positions is None else self.positions)

    @property
    def choices(self) -> tuple[str, ...]:
        return POSITIONS if self.positions is None else (self.positions,)

    @property
    def columns(self) -> list[str]:
        """The states that are tried."""
        return columns(self.models, "both" if self.positions is None else self.positions)


@dataclass(frozen=True, eq=False)
class TrainedJudge:
    """A judge head, fitted to all prompts.

    ``probabilities`` ``(N,)`` are those by classifiers that have not seen a token's fold, and ``fitted`` the head's.
    """

    head: JudgeHead
    examples: Examples
    folds: NDArray[np.int64]
    probabilities: NDArray[np.floating]
    fitted: NDArray[np.floating]

    def save(self, folder: Path) -> None:
        """Write the head, its model card and its ROC curves into ``folder``."""
        labels, weights = self.examples.labels, self.examples.weights
        curves = [
            Curve("out of fold", labels, self.probabilities, weights),
            Curve("training", labels, self.fitted, weights, style=":"),
        ]
        shares = {"positive": "important tokens found", "others": "unimportant tokens taken for important"}
        save_with_roc(self.head, folder, curves, **shares)


def train_judge(
    examples: Examples,
    origin: Origin,
    settings: JudgeSettings = JudgeSettings(),
    *,
    folds: NDArray[np.int64] | None = None,
    on_fit: Callable[[], None] = lambda: None,
) -> TrainedJudge:
    """Train a judge head: a standardisation and a logistic regression, folded into one weight and one bias.

    Garipov et al. 2025 (AutoJudge), section 4.1 and appendix B. The head that is returned has seen all prompts. All
    figures and thresholds are out of fold: each prompt is judged by a classifier that has not seen its fold. Two
    choices make figures a little too good: scores out of fold choose the states and the regularisation, and scores of
    classifiers that have seen a fold choose its regularisation. By default, prompts are dealt into folds at random.
    ``on_fit`` is called after each logistic regression.
    """
    examples = examples.only(settings.columns)
    check(examples)
    folds = deal(examples.labels, examples.prompts, seed=settings.seed) if folds is None else folds
    numbers = np.unique(folds).tolist()
    if len(numbers) < 2 or not all(both_classes(examples.labels[folds != number]) for number in numbers):
        raise LossyValueError(
            f"`folds` have to be two or more, with both classes outside each, but are {numbers}; mine more prompts"
        )
    grid, seed = regressions(settings.strengths), settings.seed
    crossed, scores = {}, {}
    for at in settings.choices:
        read = columns(settings.models, at)
        crossed[at] = cross(grid, read, examples, folds, on_fit=on_fit)
        scores[at] = np.empty(len(examples), dtype=np.float32)
        for number, pipeline in crossed[at].by_fold.items():
            inside = folds == number
            scores[at][inside] = as_saved(pipeline, examples.where(inside).features(read))
    at, states = better(examples, scores, seed=seed)
    best, read, found = crossed[at].chosen, columns(settings.models, at), scores[at]
    final = fit(best, read, examples)
    on_fit()
    fitted = as_saved(final, examples.features(read))
    labels, weights = examples.labels, examples.weights
    threshold = largest_threshold(labels, found, settings.recall, weights)
    rows = recall_rows(labels, found, sorted({*RECALLS, settings.recall}), weights)
    metrics = {
        **_solved(examples, found, seed),
        **area_of(examples, found, seed=seed),
        "train_auc": float(roc_auc_score(labels, fitted, sample_weight=weights)),
        "C": float(best.C),
        "recall": float(np.average(found[labels] >= threshold, weights=weights[labels])),
        "skipped": float(np.average(found < threshold, weights=weights)),
        **states,
        **learning_curve(best, read, examples, folds, seed=seed),
        **{"folds": len(numbers), **examples.counts()},
    }
    head = JudgeHead.from_linear(
        **_linear(final), models=settings.models, positions=at, threshold=threshold,
        thresholds=tuple(ThresholdRow(*row) for row in rows), metrics=metrics, **origin.config_fields(asdict(settings)),
    )  # fmt: skip
    return TrainedJudge(head, examples, folds, found, fitted)


def _linear(pipeline: Pipeline) -> dict[str, NDArray[np.floating]]:
    """Return the arrays of a standardisation and a logistic regression."""
    scaler, regression = pipeline[0], pipeline[-1]
    return {"weight": regression.coef_, "bias": regression.intercept_, "mean": scaler.mean_, "scale": scaler.scale_}


def as_saved(pipeline: Pipeline, features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the probabilities of a head: its weight and bias are folded, in float32."""
    weight, bias = fold(**_linear(pipeline))
    return torch.sigmoid(torch.from_numpy(features) @ weight + bias).numpy()


def _solved(examples: Examples, scores: NDArray[np.floating], seed: int) -> dict[str, float]:
    """Return the area on the prompts that the target solves: only there does a label protect a right answer."""
    if examples.solved is None or examples.solved.all() or not both_classes(examples.labels[examples.solved]):
        return {}
    right = examples.where(examples.solved)
    return {
        **area_of(right, scores[examples.solved], seed=seed, name="auc_solved"),
        "solved_prompts": len(np.unique(right.prompts)),
    }


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
    """One classifier on one choice of states, out of fold, with the seconds of its fits.

    ``gain`` is its ROC-AUC less that of the head, with a 95 % interval by prompts.
    """

    classifier: str
    models: str
    positions: str
    auc: float
    auc_low: float
    auc_high: float
    gain: float
    gain_low: float
    gain_high: float
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


def _tried(settings: JudgeSettings, most: int) -> dict[str, Sequence[Any]]:
    """Return what is compared with the head on its own states: of each entry, the best classifier counts.

    From appendix B: 128 trees, each leaf with 0.1 % of the tokens or more; 128 ReLU units in one hidden layer, stopped
    early on a tenth of the training set. All else is scikit-learn's default. ``most`` bounds principal components.
    """
    grid, seed = regressions(settings.strengths), settings.seed
    return {
        **{f"logistic regression, C = {each.C:g}": [each] for each in grid},
        **{f"{n} principal components": [(PCA(n, random_state=seed), x) for x in grid] for n in RANKS if n < most},
        "random forest, 128 trees": [RandomForestClassifier(128, min_samples_leaf=0.001, random_state=seed)],
        "MLP, 128 hidden units": [MLPClassifier((128,), early_stopping=True, random_state=seed)],
    }


Trial = tuple[str, tuple[str, str], Sequence[str], Sequence[Any]]
"""A classifier's name, the models and positions of the states that it reads, their columns, and the classifiers."""


def trials(examples: Examples, trained: TrainedJudge, settings: JudgeSettings) -> list[Trial]:
    """Return what :func:`compare` tries: other classifiers on the head's states, and regressions on other states."""
    config = trained.head.config
    seen = len(examples) - np.unique(trained.folds, return_counts=True)[1].max()
    tried = _tried(settings, min(config.width, int(seen)))
    own = [(label, (config.models, config.positions), config.columns, each) for label, each in tried.items()]
    grid = regressions(settings.strengths)
    others = variants(list(examples.states))
    return own + [("logistic regression", (models, at), states, grid) for models, at, states in others]


def compare(
    examples: Examples, trained: TrainedJudge, settings: JudgeSettings, trials: Iterable[Trial]
) -> Iterator[Compared]:
    """Compare :func:`trials` with the head, out of fold, on the folds of ``trained``.

    Garipov et al. 2025 (AutoJudge), appendix B, figures 6 and 7.
    """
    seed, area_before = settings.seed, trained.head.config.metrics["auc"]
    base = draws_of(examples, trained.probabilities, seed)
    for label, choice, states, tried in trials:
        found = cross(tried, states, examples, trained.folds)
        area = area_of(examples, found.probabilities, seed=seed)
        gain = interval(draws_of(examples, found.probabilities, seed) - base)
        yield Compared(label, *choice, *area.values(), area["auc"] - area_before, *gain, found.seconds)
