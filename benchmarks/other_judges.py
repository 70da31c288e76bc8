"""Other classifiers and other states beside a judge head's, out of fold: ``python -m benchmarks.other_judges``.

Garipov et al. 2025 (AutoJudge), appendix B, figures 6 and 7.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from benchmarks import command
from hf_lossy_assist.cli.console import limit_threads
from hf_lossy_assist.cli.options import Threads
from hf_lossy_assist.evaluation.tables import table
from hf_lossy_assist.heads import columns
from hf_lossy_assist.training.examples import Examples, check, read_together
from hf_lossy_assist.training.judge_training import STRENGTHS, JudgeSettings, TrainedJudge, regressions, train_judge
from hf_lossy_assist.training.validation import area_of, cross, deal, gain_of

CHOICES = ("target", "draft", "both"), ("previous", "draft", "both")
RANKS = (64, 128, 256)
Row = Mapping[str, str]


class OnComponents(ClassifierMixin, BaseEstimator):
    """A logistic regression on the first principal components of the states."""

    def __init__(self, rank: int, strength: float, seed: int = 0) -> None:
        self.rank, self.strength, self.seed = rank, strength, seed

    def fit(self, X: NDArray[Any], y: NDArray[Any], sample_weight: NDArray[Any]) -> Self:
        self.components_ = PCA(self.rank, random_state=self.seed).fit(X)
        (regression,) = regressions([self.strength])
        self.regression_: LogisticRegression = regression.fit(self.components_.transform(X), y, sample_weight)
        return self

    def predict_proba(self, X: NDArray[Any]) -> NDArray[Any]:
        return self.regression_.predict_proba(self.components_.transform(X))


def classifiers(strengths: Sequence[float], seed: int, most: int) -> dict[str, Sequence[Any]]:
    """Return what is tried on the head's own states: of each entry, the best classifier counts.

    From appendix B: 128 trees, each leaf with 0.1 % of the tokens or more; 128 ReLU units in one hidden layer, stopped
    early on a tenth of the training set. All else is scikit-learn's default. ``most`` bounds principal components.
    """
    return {
        **{f"logistic regression, C = {each.C:g}": [each] for each in regressions(strengths)},
        **{f"{n} principal components": [OnComponents(n, x, seed) for x in strengths] for n in RANKS if n < most},
        "random forest, 128 trees": [RandomForestClassifier(128, min_samples_leaf=0.001, random_state=seed)],
        "MLP, 128 hidden units": [MLPClassifier((128,), early_stopping=True, random_state=seed)],
    }


def compare(examples: Examples, trained: TrainedJudge, settings: JudgeSettings) -> Iterator[Row]:
    """Compare other classifiers on the head's states, and regressions on other states, with the head."""
    config, folds = trained.head.config, deal(examples, seed=settings.seed)
    seen = len(examples) - np.unique(folds, return_counts=True)[1].max()
    tried = classifiers(settings.strengths, settings.seed, min(config.width, int(seen)))
    jobs = [(name, config.models, config.positions, each) for name, each in tried.items()]
    grid = regressions(settings.strengths)
    jobs += [("logistic regression", models, at, grid) for at in CHOICES[1] for models in CHOICES[0]]
    for name, models, at, each in jobs:
        states = columns(models, at)
        if not {*states} <= {*examples.states}:
            continue
        start = time.perf_counter()
        scores = cross(each, states, examples, folds).probabilities
        seconds = time.perf_counter() - start
        area, low, high = area_of(examples, scores, seed=settings.seed).values()
        gain = gain_of(examples, scores, trained.probabilities, settings.seed)
        yield {
            "classifier": name,
            "position": at,
            "model": models,
            "AUC": f"{area:.4f} ({low:.4f} … {high:.4f})",
            "against the head": "{:+.4f} ({:+.4f} … {:+.4f})".format(*gain),
            "seconds": f"{seconds:.2f}",
        }


def main(
    data: Annotated[list[Path], typer.Option(help="Folder that `lossy-assist mine` wrote. Repeatable.")],
    seed: Annotated[int, typer.Option(min=0, help="Seed of the folds.")] = 0,
    threads: Threads = None,
) -> None:
    """Compare other classifiers and other states with the head that `train judge` makes, on the same folds."""
    limit_threads(threads)
    labelled, settings = read_together(data), JudgeSettings(strengths=STRENGTHS, seed=seed)
    check(labelled.examples)
    rows = list(compare(labelled.examples, train_judge(labelled.examples, labelled.origin, settings), settings))
    headings = {name: lambda row, name=name: row[name] for name in rows[0]}
    Console().print(table(rows, headings, "Classifiers and states, out of fold"))


app = command(main)

if __name__ == "__main__":
    app()
