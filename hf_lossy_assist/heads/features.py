"""Which hidden states a judge head reads, and in which order."""

from __future__ import annotations

from ..errors import LossyValueError
from .checks import brief

POSITIONS = ("previous", "draft")
"""``previous``: the state that predicted the drafted token; ``draft``: the state that has read it."""

MODELS = ("target", "draft")
"""The models whose final hidden states, the inputs of their LM heads, may be read."""


def columns(models: str = "target", positions: str = "draft") -> list[str]:
    """Return the names of the chosen features, ``{model}_{position}``, in the order in which a head reads them.

    Garipov et al. 2025 (AutoJudge), section 3.2 and appendix B.

    Parameters
    ----------
    models
        ``"target"``, ``"draft"`` or ``"both"``.
    positions
        ``"previous"``, ``"draft"`` or ``"both"``.

    Raises
    ------
    LossyValueError
        For any other choice.

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
