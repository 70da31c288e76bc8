"""Training of judge heads from labelled mismatches, and comparison with other classifiers and other states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
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
from ..heads import JudgeHead, ThresholdRow, columns
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
    """A judge head, fitted to all prompts, and for each fold one that has not seen it.

    ``scores`` ``(N,)``, by the states that are read, are probabilities by heads that have not seen a token's fold, and
    ``fitted`` the final head's.
    """

    head: JudgeHead
    by_fold: Mapping[int, JudgeHead]
    folds: NDArray[np.int64]
    examples: Examples
    scores: Mapping[str, NDArray[np.floating]]
    fitted: NDArray[np.floating]

    @property
    def probabilities(self) -> NDArray[np.floating]:
        """The scores with the states that the final head reads."""
        return self.scores[self.head.config.positions]

    def save(self, folder: Path, *, folds: bool = False) -> None:
        """Write the head, its model card and its ROC curves into ``folder``.

        With ``folds``, the others go into its subfolders ``fold-0``, ``fold-1``, ….
        """
        labels, weights = self.examples.labels, self.examples.weights
        curves = [
            Curve("out of fold", labels, self.probabilities, weights),
            Curve("training", labels, self.fitted, weights, style=":"),
        ]
        shares = {"positive": "important tokens found", "others": "unimportant tokens taken for important"}
        for fold, head in self.by_fold.items() if folds else ():
            others, found = self.folds != fold, self.scores[head.config.positions]
            curve = Curve("out of fold", labels[others], found[others], weights[others])
            save_with_roc(head, folder / f"fold-{fold}", [curve], **shares)
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
    figures and thresholds are out of fold: each prompt is judged by a head that has not seen its fold. The head that
    leaves a fold out has the figures, the threshold and the states of the other folds. Two choices make figures a
    little too good. All folds choose the final head's states. And scores of heads that have seen a fold choose its
    regularisation and threshold. By default, prompts are dealt into folds at random.
    ``on_fit`` is called after each logistic regression.
    """
    examples = examples.only(settings.columns)
    check(examples)
    folds = deal(examples.labels, examples.prompts, seed=settings.seed) if folds is None else folds
    numbers = [int(fold) for fold in np.unique(folds)]
    if len(numbers) < 2 or not all(both_classes(examples.labels[folds != fold]) for fold in numbers):
        raise LossyValueError(
            f"`folds` have to be two or more, with both classes outside each, but are {numbers}; mine more prompts"
        )
    grid, seed, everywhere = regressions(settings.strengths), settings.seed, np.ones(len(examples), dtype=bool)

    def head_of(pipeline: Pipeline, positions: str, **notes: Any) -> JudgeHead:
        scaler, regression = pipeline[0], pipeline[-1]
        return JudgeHead.from_linear(
            regression.coef_, regression.intercept_, mean=scaler.mean_, scale=scaler.scale_, models=settings.models,
            positions=positions, threshold=0.5, **origin.config_fields(asdict(settings), **notes),
        )  # fmt: skip

    # Measure heads as they are saved: folded, in float32.
    crossed, heads, scores = {}, {}, {}
    for at in settings.choices:
        crossed[at] = cross(grid, columns(settings.models, at), examples, folds, on_fit=on_fit)
        heads[at] = {fold: head_of(each, at, left_out_fold=fold) for fold, each in crossed[at].by_fold.items()}
        scores[at] = np.empty(len(examples), dtype=np.float32)
        for fold, one in heads[at].items():
            scores[at][folds == fold] = probabilities(one, examples.where(folds == fold))

    def choose(mask: NDArray[np.bool_]) -> tuple[str, dict[str, float]]:
        return better(examples.where(mask), {at: each[mask] for at, each in scores.items()}, seed=seed)

    def measure(head: JudgeHead, strength: float, mask: NDArray[np.bool_], more: Mapping[str, float]) -> None:
        some, found = examples.where(mask), scores[head.config.positions][mask]
        labels, weights = some.labels, some.weights
        threshold = largest_threshold(labels, found, settings.recall, weights)
        rows = recall_rows(labels, found, sorted({*RECALLS, settings.recall}), weights)
        metrics = {
            **_solved(some, found, seed),
            **area_of(some, found, seed=seed),
            "train_auc": float(roc_auc_score(labels, probabilities(head, some), sample_weight=weights)),
            "C": float(strength),
            "recall": float(np.average(found[labels] >= threshold, weights=weights[labels])),
            "skipped": float(np.average(found < threshold, weights=weights)),
            **more,
            **{"folds": len(np.unique(folds[mask])), **some.counts()},
        }
        table = tuple(ThresholdRow(*row) for row in rows)
        head.config = replace(head.config, threshold=threshold, thresholds=table, metrics=metrics)

    by_fold = {}
    for fold in numbers:
        at, states = choose(folds != fold)
        by_fold[fold] = heads[at][fold]
        measure(by_fold[fold], crossed[at].by_fold[fold][-1].C, folds != fold, states)
    at, states = choose(everywhere)
    best, read = crossed[at].chosen, columns(settings.models, at)
    head = head_of(fit(best, read, examples), at)
    on_fit()
    measure(head, best.C, everywhere, states | learning_curve(best, read, examples, folds, seed=seed))
    return TrainedJudge(head, by_fold, folds, examples, scores, probabilities(head, examples))


def _solved(examples: Examples, scores: NDArray[np.floating], seed: int) -> dict[str, float]:
    """Return the area on the prompts that the target solves: only there does a label protect a right answer."""
    if examples.solved is None or examples.solved.all() or not both_classes(examples.labels[examples.solved]):
        return {}
    right = examples.where(examples.solved)
    return {
        **area_of(right, scores[examples.solved], seed=seed, name="auc_solved"),
        "solved_prompts": len(np.unique(right.prompts)),
    }


def probabilities(head: JudgeHead, examples: Examples) -> NDArray[np.float32]:
    return head.probability(torch.from_numpy(examples.features(head.config.columns))).numpy()


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
