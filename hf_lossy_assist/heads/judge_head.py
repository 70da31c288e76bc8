"""Judge heads, which tell whether a mismatch is important for the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..errors import LossyValueError
from .checks import PROBABILITY, Checked, Probability, brief
from .head import Head
from .head_config import HeadConfig

MODELS, POSITIONS = ("target", "draft"), ("previous", "draft")
"""The models, and the states of each, that a judge may read."""


def columns(models: str = "target", positions: str = "draft") -> list[str]:
    """Return the names ``{model}_{position}`` of the chosen states, in the order in which a head reads them.

    Garipov et al. 2025 (AutoJudge), section 3.2 and appendix B. ``models`` is ``"target"``, ``"draft"`` or ``"both"``;
    ``positions`` is ``"previous"``, ``"draft"`` or ``"both"``.

    Examples
    --------
    >>> columns("target", "draft")
    ['target_draft']
    >>> columns("both", "both")
    ['target_previous', 'target_draft', 'draft_previous', 'draft_draft']
    """
    chosen_models = _chosen("models", models, MODELS)
    chosen_positions = _chosen("positions", positions, POSITIONS)
    return [f"{model}_{position}" for model in chosen_models for position in chosen_positions]


def _chosen(argument: str, value: str, choices: tuple[str, ...]) -> tuple[str, ...]:
    if value == "both":
        return choices
    if value not in choices:
        raise LossyValueError(f"`{argument}` has to be one of {[*choices, 'both']}, but is {brief(value)}")
    return (value,)


@dataclass(frozen=True)
class ThresholdRow(Checked):
    """The effect of a judge at one threshold, measured on validation data.

    ``recall`` is the share of the important tokens with a probability of at least ``threshold``, ``skipped`` the share
    of all mismatches below it, which are accepted.
    """

    threshold: Probability
    recall: Probability
    skipped: Probability


@dataclass(frozen=True, kw_only=True)
class JudgeConfig(HeadConfig):
    """The configuration of a judge head (Garipov et al. 2025, AutoJudge).

    Parameters
    ----------
    models, positions
        Which hidden states it reads; see :func:`columns`.
    """

    models: str = "target"
    positions: str = "draft"

    kind: ClassVar[str] = "judge"
    rule: ClassVar[str] = "judge"
    row: ClassVar[type] = ThresholdRow

    def __post_init__(self) -> None:
        super().__post_init__()
        columns(self.models, self.positions)

    @property
    def columns(self) -> list[str]:
        return columns(self.models, self.positions)


class JudgeHead(Head):
    """``P(important)`` of a drafted token that the base rule would reject; accepted iff it is below the threshold.

    Garipov et al. 2025 (AutoJudge), section 3. The weight has the standardisation folded in.

    Examples
    --------
    >>> import torch
    >>> from hf_lossy_assist.heads import ModelIdentity
    >>> identity = ModelIdentity("org/llama", None, "LlamaForCausalLM", hidden_size=2, vocab_size=1000)
    >>> config = JudgeConfig(
    ...     target=identity, draft=identity, task="gsm8k", threshold=0.3, thresholds=(ThresholdRow(0.3, 0.9, 0.7),)
    ... )
    >>> head = JudgeHead(config, weight=torch.tensor([1.0, -1.0]), bias=0.0)
    >>> head.probability(torch.tensor([[0.0, 0.0], [0.0, 5.0]])) < head.config.threshold
    tensor([False,  True])
    >>> head.threshold_for(recall=0.9)
    0.3
    """

    config_class: ClassVar[type[HeadConfig]] = JudgeConfig
    config: JudgeConfig

    def threshold_for(self, recall: float) -> float:
        """Return the largest threshold of the head's table that finds at least this share of the important tokens."""
        PROBABILITY.check("recall", recall)
        table = self.config.thresholds
        if not table:
            raise LossyValueError("`recall` needs a head with a table of thresholds; give `threshold` instead")
        enough = [row.threshold for row in table if row.recall >= recall]
        if not enough:
            best = max(row.recall for row in table)
            raise LossyValueError(f"`recall` is {recall}, but this head's table reaches {best:.4g} at most")
        return max(enough)
