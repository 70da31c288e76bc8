"""Training of judge heads from labelled mismatches, and of verifier heads from ratios of probabilities.

All figures are out of fold: each prompt is judged by a fit that has not seen it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import NDArray

from ..errors import LossyValueError, need
from ..heads import Head, JudgeHead, ThresholdRow, VerifierConfig, VerifierHead, VerifierRow, columns, fold
from ..heads.judge_head import POSITIONS as JUDGE_POSITIONS
from ..heads.repository import ROC
from ..progress import track
from ..values import POSITIVE, SHARE, Checked
from .examples import Examples, Origin, Ratios, check_finite

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

FOLDS = 5

RECALLS = (1.0, 0.995, 0.99, 0.98, 0.97, 0.95, 0.93, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
"""The recalls in the table of a head: of important tokens, or of acceptable ones."""

STRENGTHS = tuple(10.0**-k for k in range(7, -1, -1))
"""The grid of scikit-learn's ``C``, from the strongest regularisation to the weakest."""

MAX_ITER = 500  # from appendix B of the AutoJudge paper; all else is scikit-learn's default


def both_classes(labels: NDArray[np.bool_]) -> bool:
    return bool(labels.any() and not labels.all())


Split = tuple[NDArray[np.int64], NDArray[np.int64]]
"""The indices of the tokens to fit to, and of those to judge."""


def folds_of(examples: Examples, *, seed: int = 0) -> list[Split]:
    """Deal prompts into folds with about equal shares of both classes; a prompt's tokens stay together."""
    from sklearn.model_selection import StratifiedGroupKFold  # of the extra `lab`, as all of scikit-learn

    labels, prompts, folds = examples.labels, examples.prompts, []
    count = len(np.unique(prompts))
    if count > 1 and both_classes(labels):
        cut = StratifiedGroupKFold(min(FOLDS, count), shuffle=True, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a class of few tokens is refused below, if it has to be
            folds = list(cut.split(labels, labels, prompts))
    if not folds or not all(both_classes(labels[others]) for others, _ in folds):
        found = " and ".join(
            f"{len(np.unique(prompts[labels == label]))} {name}" for label, name in enumerate(examples.classes)
        )
        raise LossyValueError(
            f"`data` has to have {' and '.join(examples.classes)} tokens outside every fold of the prompts, but of "
            f"{count} prompts {found} tokens; mine more prompts"
        )
    return folds


def largest_threshold(examples: Examples, scores: NDArray[np.floating], recall: float) -> float:
    """Return the largest τ such that a share ``recall`` of the True tokens has a probability of at least τ."""
    own, weights = scores[examples.labels], examples.weights[examples.labels]
    order = np.argsort(-own, kind="stable")
    found = weights[order].cumsum()
    # 0.7 of 10 tokens are 7, not 8, although 0.7 * 10 comes out a little above 7.
    return float(own[order][np.searchsorted(found, recall * found[-1] * (1 - 1e-9))])


def recall_and_skipped(examples: Examples, scores: NDArray[np.floating], threshold: float) -> tuple[float, float]:
    """Return the share of the important tokens that a judge finds, and that of all tokens that it lets pass."""
    labels, weights = examples.labels, examples.weights
    recall = np.average(scores[labels] >= threshold, weights=weights[labels])
    return float(recall), float(np.average(scores < threshold, weights=weights))


def rates(examples: Examples, scores: NDArray[np.floating], threshold: float) -> tuple[float, float]:
    """Return TPR and FPR: the shares of True and of False tokens with a probability above ``threshold``."""
    above = scores > threshold
    return float(above[examples.labels].mean()), float(above[~examples.labels].mean())


def auc_interval(
    examples: Examples, scores: NDArray[np.floating], *, draws: int = 500, seed: int = 0
) -> tuple[float, float]:
    """Return the ends between which 95 % of the ROC-AUCs lie of bootstrap samples of the prompts.

    Tokens of one prompt are dependent. Samples with a single class are left out; if all are, the ends are 0 and 1.
    """
    rng = np.random.default_rng(seed)
    _, owner = np.unique(examples.prompts, return_inverse=True)
    count = owner.max() + 1
    areas = []
    for _ in range(draws):
        times = np.bincount(rng.integers(count, size=count), minlength=count)[owner] * examples.weights
        if both_classes(examples.labels[times > 0]):
            areas.append(auc_of(replace(examples, weights=times), scores))
    low, high = np.quantile(areas, (0.025, 0.975)) if areas else (0.0, 1.0)
    return float(low), float(high)


def auc_of(examples: Examples, scores: NDArray[np.floating]) -> float:
    """Return the ROC-AUC on examples, which count by their weights."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(examples.labels, scores, sample_weight=examples.weights))


@dataclass(frozen=True, eq=False)
class Fitted:
    """The best of several choices of states, and a regression on it that has read all examples.

    Attributes
    ----------
    choice
        The name of the choice.
    linear
        The arrays of the standardisation and the regression.
    probabilities
        ``(N,)`` those of the True class by fits that have not seen a token's fold.
    fitted
        ``(N,)`` those of the regression itself.
    metrics
        Figures of both.
    """

    choice: str
    linear: dict[str, NDArray[np.floating]]
    probabilities: NDArray[np.floating]
    fitted: NDArray[np.floating]
    metrics: dict[str, float]


def pipeline_of(strength: float) -> Pipeline:
    """Return a standardisation and a logistic regression with L2 regularisation, of scikit-learn's ``C``."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=MAX_ITER))


def _weights(examples: Examples) -> dict[str, NDArray[np.floating]]:
    share = examples.weights / examples.weights.mean()
    return {f"{step}__sample_weight": share for step in ("standardscaler", "logisticregression")}


def fit(choices: Mapping[str, Sequence[str]], strengths: Sequence[float], examples: Examples, *, seed: int) -> Fitted:
    """Judge each fold by fits to the others, by every choice of columns and strength, and fit the best to all.

    The best is that whose ROC-AUC out of fold is the highest. So it is chosen by the same figures that are reported,
    which makes them a little too good.
    """
    need("lab", "training a head")
    check_finite(examples)
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.model_selection import cross_val_predict

    folds, labels, weights = folds_of(examples, seed=seed), examples.labels, _weights(examples)

    def crossed(name: str, strength: float) -> NDArray[np.floating]:
        options = {"cv": folds, "method": "predict_proba", "params": weights}
        found = cross_val_predict(pipeline_of(strength), examples.features(choices[name]), labels, **options)
        return found[:, 1].astype(np.float64)

    tried = [(name, strength) for name in choices for strength in strengths]
    with warnings.catch_warnings():
        # A fit that reaches the paper's limit of iterations is validated like any other.
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = dict(zip(tried, track((crossed(*one) for one in tried), total=len(tried), what="fits"), strict=True))
        areas = {one: auc_of(examples, scores) for one, scores in found.items()}
        best = choice, strength = max(areas, key=areas.__getitem__)
        features = examples.features(choices[choice])
        final = pipeline_of(strength).fit(features, labels, **weights)
    scaler, regression, fitted = final[0], final[-1], final.predict_proba(features)[:, 1]
    low, high = auc_interval(examples, found[best], seed=seed)
    by_state = {f"auc_{name}": max(area for one, area in areas.items() if one[0] == name) for name in choices}
    return Fitted(
        choice,
        {"weight": regression.coef_, "bias": regression.intercept_, "mean": scaler.mean_, "scale": scaler.scale_},
        found[best], fitted,
        {
            "auc": areas[best], "auc_low": low, "auc_high": high, "train_auc": auc_of(examples, fitted),
            **(by_state if len(choices) > 1 else {}), "C": strength, "folds": len(folds), **examples.counts(),
        },
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Trained:
    """A head, fitted to all prompts.

    ``probabilities`` ``(N,)`` are those by classifiers that have not seen a token's fold, and ``fitted`` the head's.
    """

    head: Head
    examples: Examples
    probabilities: NDArray[np.floating]
    fitted: NDArray[np.floating]

    def save(self, folder: str | Path) -> None:
        """Write the head, its model card and its ROC curves into ``folder``."""
        (folder := Path(folder)).mkdir(parents=True, exist_ok=True)
        # Without pyplot, which would choose a window system and keep every figure alive.
        from matplotlib.figure import Figure
        from sklearn.metrics import roc_curve

        figure = Figure(figsize=(5, 4.5), layout="constrained")
        axes, examples = figure.add_subplot(), self.examples
        axes.plot([0, 1], [0, 1], color="0.8", linewidth=1)
        for name, scores, style in (("out of fold", self.probabilities, "-"), ("training", self.fitted, ":")):
            false_rates, true_rates, _ = roc_curve(examples.labels, scores, sample_weight=examples.weights)
            label = f"{name} (AUC {auc_of(examples, scores):.3f})"
            axes.plot(false_rates, true_rates, style, color="C0", label=label)
        negative, positive = examples.classes
        title = f"{self.head.config.kind.capitalize()} head for {self.head.config.task}"
        axes.set(title=title, xlabel=f"share of {negative} tokens taken for {positive}", aspect="equal")
        axes.set_ylabel(f"share of {positive} tokens found")
        axes.legend(loc="lower right", fontsize="small")
        figure.savefig(folder / ROC, dpi=120)
        self.head.save_pretrained(folder)  # the card shows the plot if it is there


@dataclass(frozen=True)
class JudgeSettings(Checked):
    """Settings for training a judge head."""

    # As in :func:`.heads.columns`; by default "previous" or "draft", whichever is better out of fold.
    positions: str | None = None
    # The share of important tokens that the default threshold has to find, out of fold.
    recall: Annotated[float, SHARE] = 0.9
    strengths: tuple[float, ...] = STRENGTHS  # the grid of scikit-learn's ``C``
    seed: int = 0  # of the folds

    def __post_init__(self) -> None:
        super().__post_init__()
        columns(positions="both" if self.positions is None else self.positions)  # refuses others


def train_judge(examples: Examples, origin: Origin, settings: JudgeSettings = JudgeSettings()) -> Trained:
    """Train a judge head: a standardisation and a logistic regression, folded into one weight and one bias.

    Garipov et al. 2025 (AutoJudge), section 4.1 and appendix B. The head that is returned has seen all prompts. All
    figures and thresholds are out of fold: each prompt is judged by a classifier that has not seen its fold. Scores out
    of fold also choose the states and the regularisation, which makes figures a little too good.

    The head reads the target's states, or the draft's where the target was behind an API.
    """
    model = "target" if any(name.startswith("target") for name in examples.states) else "draft"
    positions = JUDGE_POSITIONS if settings.positions is None else (settings.positions,)
    choices = {at: columns(model, at) for at in positions}
    examples = examples.only(columns(model, settings.positions or "both"))
    found = fit(choices, settings.strengths, examples, seed=settings.seed)
    scores = found.probabilities
    threshold = largest_threshold(examples, scores, settings.recall)
    table = sorted({largest_threshold(examples, scores, recall) for recall in {*RECALLS, settings.recall}})
    recall, skipped = recall_and_skipped(examples, scores, threshold)
    head = JudgeHead.from_linear(
        **found.linear, models=model, positions=found.choice, threshold=threshold,
        thresholds=tuple(ThresholdRow(t, *recall_and_skipped(examples, scores, t)) for t in table),
        metrics={**found.metrics, "recall": recall, "skipped": skipped},
        **origin.config_fields(asdict(settings)),
    )  # fmt: skip
    return Trained(head, examples, scores, found.fitted)


@dataclass(frozen=True)
class VerifierSettings(Checked):
    """Settings for training a verifier head."""

    # λ: a token is acceptable iff q(x) / p(x) <= λ; the paper's theorems assume 1.
    ratio: Annotated[float, POSITIVE] = 1.0
    # The share of acceptable tokens that the threshold has to commit, out of fold; by default it is 0.5.
    recall: Annotated[float | None, SHARE] = None
    strengths: tuple[float, ...] = STRENGTHS  # the grid of scikit-learn's ``C``
    seed: int = 0  # of the folds


def train_verifier(ratios: Ratios, origin: Origin, settings: VerifierSettings = VerifierSettings()) -> Trained:
    """Train a verifier head: a standardisation and a logistic regression, folded into one weight and one bias.

    SPRINTER, section 3 (verifier architecture), appendix A.5 and figure 9: a linear layer and a sigmoid, by binary
    cross-entropy. Regularisation takes the place of Adam's early stop. The head that is returned has read all prompts.
    All figures and thresholds are out of fold. They also choose the position and the regularisation, so the better
    one's are a little too good.
    """
    examples = ratios.labelled(settings.ratio)
    found = fit({at: [at] for at in ratios.states}, settings.strengths, examples, seed=settings.seed)
    scores = found.probabilities

    def threshold_for(recall: float) -> float:
        # A token of this probability is still above the threshold just below it.
        return float(np.nextafter(largest_threshold(examples, scores, recall), 0.0))

    threshold = 0.5 if settings.recall is None else threshold_for(settings.recall)
    tpr, fpr = rates(examples, scores, threshold)
    weight, bias = fold(**found.linear)
    config = VerifierConfig(
        position=found.choice,
        ratio=settings.ratio,
        threshold=threshold,
        thresholds=tuple(
            VerifierRow(t, *rates(examples, scores, t)) for t in sorted({*map(threshold_for, RECALLS), threshold})
        ),
        metrics={**found.metrics, "tpr": tpr, "fpr": fpr},
        **origin.config_fields(asdict(settings)),
    )
    return Trained(VerifierHead(config, weight, bias), examples, scores, found.fitted)
