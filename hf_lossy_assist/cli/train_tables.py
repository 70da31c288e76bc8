"""Tables of trained heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from ..heads import JudgeConfig, VerifierConfig
    from ..training.classifier_comparison import Compared


def recall_table(config: JudgeConfig) -> Table:
    """Lay out a judge's thresholds; the chosen one is marked."""
    table = Table("threshold", "important found (%)", "mismatches skipped (%)", title="Thresholds, on validation")
    for row in config.thresholds:
        mark = " ←" if row.threshold == config.threshold else ""
        table.add_row(f"{row.threshold:.6g}{mark}", f"{100 * row.recall:.1f}", f"{100 * row.skipped:.1f}")
    return table


def rate_table(config: VerifierConfig) -> Table:
    """Lay out a verifier's thresholds; the chosen one is marked."""
    table = Table("threshold", "TPR (%)", "FPR (%)", title=f"Thresholds at λ = {config.ratio:g}, on validation")
    for row in config.thresholds:
        mark = " ←" if row.threshold == config.threshold else ""
        table.add_row(f"{row.threshold:.2f}{mark}", f"{100 * row.tpr:.1f}", f"{100 * row.fpr:.1f}")
    return table


def classifier_table(rows: Sequence[Compared]) -> Table:
    """Lay out classifiers on the same states, as in figure 6 of the AutoJudge paper."""
    states = f"{rows[0].positions} position, {rows[0].models} model" + "s" * (rows[0].models == "both")
    table = Table("classifier", "AUC, validation", "AUC, training", "seconds", title=f"Classifiers ({states})")
    for row in rows:
        table.add_row(row.classifier, f"{row.validation_auc:.4f}", f"{row.train_auc:.4f}", f"{row.seconds:.2f}")
    return table


def states_table(rows: Sequence[Compared]) -> Table:
    """Lay out validation AUCs of logistic regressions on all choices of states, as in figure 7."""
    models = list(dict.fromkeys(row.models for row in rows))
    by_states = {(row.positions, row.models): f"{row.validation_auc:.4f}" for row in rows}
    table = Table("position", *models, title="Logistic regression, AUC on validation, by model")
    for position in dict.fromkeys(row.positions for row in rows):
        table.add_row(position, *(by_states.get((position, model), "") for model in models))
    return table
