"""Training of verifier heads from ratios of probabilities."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from ..heads import VerifierConfig, VerifierHead, VerifierRow, fold
from ..heads.verifier_head import POSITIONS
from ..values import POSITIVE, Checked, Probability, Rule
from .examples import Examples, Origin, Ratios, check
from .validation import (
    RECALLS,
    STRENGTHS,
    Curve,
    area_of,
    auc_of,
    best_state,
    largest_threshold,
    rates,
    save_with_roc,
)


@dataclass(frozen=True)
class VerifierSettings(Checked):
    """Settings for training a verifier head."""

    # λ: a token is acceptable iff q(x) / p(x) <= λ; the paper's theorems assume 1.
    ratio: Annotated[float, POSITIVE] = 1.0
    # The state to read; None: the better one out of fold.
    position: Annotated[str | None, Rule(f"one of {[*POSITIONS]} or None", (*POSITIONS, None).__contains__)] = None
    threshold: Probability = 0.5  # a token is committed iff the head's probability is above it
    # The share of acceptable tokens that has to be committed, out of fold: chooses the threshold.
    recall: Annotated[float | None, Rule("above 0 and at most 1, or None", lambda x: x is None or 0 < x <= 1)] = None
    strengths: tuple[float, ...] = STRENGTHS  # the grid of scikit-learn's ``C``
    seed: int = 0  # of the folds

    @property
    def positions(self) -> tuple[str, ...]:
        return POSITIONS if self.position is None else (self.position,)


@dataclass(frozen=True, eq=False)
class TrainedVerifier:
    """A verifier head, fitted to all prompts; ``probabilities`` ``(N,)`` are out of fold."""

    head: VerifierHead
    examples: Examples
    probabilities: NDArray[np.floating]

    def save(self, folder: Path) -> None:
        """Write the head, its model card and its ROC curves into ``folder``."""
        shares = {"positive": "acceptable tokens committed", "others": "unacceptable tokens committed"}
        curve = Curve(f"λ = {self.head.config.ratio:g}", self.examples, self.probabilities)
        save_with_roc(self.head, folder, [curve], **shares)


def train_verifier(
    ratios: Ratios,
    origin: Origin,
    settings: VerifierSettings = VerifierSettings(),
) -> TrainedVerifier:
    """Train a verifier head: a standardisation and a logistic regression, folded into one weight and one bias.

    SPRINTER, section 3 (verifier architecture), appendix A.5 and figure 9: a linear layer and a sigmoid, by binary
    cross-entropy. Regularisation takes the place of Adam's early stop. The head that is returned has read all prompts.
    All figures and thresholds are out of fold. They also choose the position and the regularisation, so the better
    one's are a little too good. ``curve_ratios`` are further λ for the plot, at the chosen position and strength, as
    far as both classes occur in enough prompts.
    """
    examples, seed = ratios.labelled(settings.ratio), settings.seed
    check(examples.only(settings.positions))
    choices = {at: [at] for at in settings.positions}
    position, crossed, states = best_state(choices, settings.strengths, examples, seed=seed)
    scores = crossed.probabilities
    final = crossed.final(examples)

    def threshold_for(recall: float) -> float:
        # A token of this probability is still above the threshold just below it.
        return float(np.nextafter(largest_threshold(examples, scores, recall), 0.0))

    threshold = settings.threshold if settings.recall is None else threshold_for(settings.recall)
    tpr, fpr = rates(examples, scores, threshold)
    fitted = final.predict_proba(examples.features([position]))[:, 1]
    metrics: dict[str, float] = {
        **area_of(examples, scores, seed=seed),
        **{"train_auc": auc_of(examples, fitted), "tpr": tpr, "fpr": fpr},
        **states,
    }
    scaler, found = final[0], final[-1]
    weight, bias = fold(scaler.mean_, scaler.scale_, found.coef_, found.intercept_)
    config = VerifierConfig(
        position=position,
        ratio=settings.ratio,
        threshold=threshold,
        thresholds=tuple(
            VerifierRow(t, *rates(examples, scores, t)) for t in sorted({*map(threshold_for, RECALLS), threshold})
        ),
        metrics={**metrics, **examples.counts()},
        **origin.config_fields(asdict(settings)),
    )
    return TrainedVerifier(VerifierHead(config, weight, bias), examples, scores)
