"""Training of verifier heads from ratios of probabilities."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

import numpy as np

from ..heads import VerifierConfig, VerifierHead, VerifierRow, fold
from ..heads.verifier_head import POSITIONS
from ..values import POSITIVE, Checked, Probability, Rule
from .examples import Origin, Ratios, check
from .validation import (
    RECALLS,
    STRENGTHS,
    Trained,
    fit,
    largest_threshold,
    rates,
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


def train_verifier(
    ratios: Ratios,
    origin: Origin,
    settings: VerifierSettings = VerifierSettings(),
) -> Trained:
    """Train a verifier head: a standardisation and a logistic regression, folded into one weight and one bias.

    SPRINTER, section 3 (verifier architecture), appendix A.5 and figure 9: a linear layer and a sigmoid, by binary
    cross-entropy. Regularisation takes the place of Adam's early stop. The head that is returned has read all prompts.
    All figures and thresholds are out of fold. They also choose the position and the regularisation, so the better
    one's are a little too good.
    """
    examples = ratios.labelled(settings.ratio)
    check(examples.only(settings.positions))
    choices = {at: [at] for at in settings.positions}
    found = fit(choices, settings.strengths, examples, seed=settings.seed)
    scores = found.probabilities

    def threshold_for(recall: float) -> float:
        # A token of this probability is still above the threshold just below it.
        return float(np.nextafter(largest_threshold(examples, scores, recall), 0.0))

    threshold = settings.threshold if settings.recall is None else threshold_for(settings.recall)
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
