"""Judge heads, which tell whether a mismatch is important for the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from numpy.typing import ArrayLike
from torch import nn

from ..errors import LossyValueError, brief
from ..values import PROBABILITY, Checked, Probability
from .head import Head, fold
from .head_config import HeadConfig
from .identity import ModelIdentity

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
    """The effect of a judge at one threshold, measured on prompts that it was not fitted to.

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

    @classmethod
    def from_linear(
        cls,
        weight: ArrayLike,
        bias: ArrayLike,
        *,
        target: ModelIdentity | nn.Module,
        draft: ModelIdentity | nn.Module,
        task: str,
        threshold: float,
        mean: ArrayLike | None = None,
        scale: ArrayLike | None = None,
        **fields: Any,
    ) -> Self:
        """Make a judge from the arrays of a linear classifier, such as scikit-learn's ``LogisticRegression``.

        ``P(important) = sigmoid(weight · (h - mean) / scale + bias)`` of a hidden state h, computed in float64 and
        stored as one weight and one bias in float32.

        Parameters
        ----------
        weight, bias
            The classifier's coefficients ``(d,)`` or ``(1, d)``, and its intercept, one number. The class 1 has to be
            the important tokens.
        target, draft
            The models that the classifier was trained for, or their :class:`ModelIdentity`.
        task
            The name of the task whose prompts it was trained on.
        threshold
            The probability at which the head decides: a token below it is kept.
        mean, scale
            The standardisation ``(d,)`` before the classifier, 0 and 1 by default.
        fields
            Further fields of :class:`JudgeConfig`: ``models`` and ``positions`` name the d features, in the order of
            :func:`columns` (by default the target's state that has read the drafted token); ``thresholds``,
            ``metrics`` and ``provenance`` are for the model card.

        Raises
        ------
        LossyValueError
            If an array is not finite, or if d is not the width of the features.

        Examples
        --------
        >>> import torch
        >>> identity = ModelIdentity("org/llama", None, "LlamaForCausalLM", hidden_size=2, vocab_size=1000)
        >>> models = {"target": identity, "draft": identity}
        >>> head = JudgeHead.from_linear([[1.0, -1.0]], [0.0], mean=[3.0, 3.0], **models, task="gsm8k", threshold=0.3)
        >>> head.probability(torch.tensor([[3.0, 3.0], [3.0, 8.0]])) < head.config.threshold
        tensor([False,  True])
        """
        models = {"target": target, "draft": draft}
        owners = {role: ModelIdentity.of(x) if isinstance(x, nn.Module) else x for role, x in models.items()}
        config = cls.config_class(**owners, task=task, threshold=threshold, **fields)
        folded, offset = fold(mean, scale, weight, bias)
        if not (folded.isfinite().all() and offset.isfinite()):
            raise LossyValueError(
                "`weight` and `bias` have to be finite in float32 once `mean` and `scale` are folded in; give constant "
                "features a `scale` of 1"
            )
        return cls(config, folded, offset)

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
