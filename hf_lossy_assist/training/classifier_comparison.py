"""Comparison of a judge head with other classifiers and with other choices of states."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..heads.judge_head import MODELS, POSITIONS
from .classifiers import Fit, best, fit_forest, fit_logistic, fit_mlp
from .examples import Examples
from .judge_training import JudgeSettings, split

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

    Garipov et al. 2025 (AutoJudge), appendix B, figures 6 and 7. The split is that of
    :func:`.judge_training.train_judge`. First come the logistic regressions of all strengths, the random forest and the
    perceptron, then the best logistic regression on every choice of states.
    """
    train, validation = split(examples, settings)
    columns = settings.columns

    def row(fit: Fit, models: str, positions: str, seconds: float) -> Compared:
        return Compared(fit.label, models, positions, fit.train_auc, fit.validation_auc, seconds)

    for strength in settings.strengths:
        (fit,) = fit_logistic(columns, train, validation, strengths=[strength])
        yield row(fit, settings.models, settings.positions, fit.seconds)
    for fitted in (fit_forest, fit_mlp):
        fit = fitted(columns, train, validation, seed=settings.seed)
        yield row(fit, settings.models, settings.positions, fit.seconds)
    for models, positions, states in variants(list(examples.states)):
        fits = fit_logistic(states, train, validation, strengths=settings.strengths)
        yield row(best(fits), models, positions, sum(fit.seconds for fit in fits))


def count(available: Sequence[str], settings: JudgeSettings) -> int:
    """Return the number of rows that :func:`compare` yields."""
    return len(settings.strengths) + 2 + len(variants(available))
