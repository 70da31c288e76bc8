"""Measured acceptance beside its closed form, position by position."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..theory import ears_acceptance, lossless_acceptance
from .contenders import Contender, Models
from .trials import Batch, Workload, attempt

CLOSED_FORMS: Mapping[str, Callable[..., Tensor]] = {
    "lossless": lambda p, q, **settings: lossless_acceptance(p, q),
    "ears": lambda p, q, beta=0.1, **settings: ears_acceptance(p, q, beta),
}
"""The probability that a rule keeps a drafted token, of the laws p and q at its position."""


@dataclass(frozen=True)
class Prediction:
    """One rule over all positions at which it had a drafted token to judge.

    Attributes
    ----------
    label
        The contender.
    positions
        How many they are.
    measured, predicted
        Share of the drafted tokens that were kept, and the mean of its closed form over the same positions.
    margin
        1.96 standard deviations of the measured share about the predicted one.
    gain, bound
        By how much the closed form is above that of the lossless rule at the same positions, and the bound on it,
        the mean of ``β·(1 - max p)·Q(p < q)``; 0 for lossless.
    """

    label: str
    positions: int
    measured: float
    predicted: float
    margin: float
    gain: float
    bound: float


def predict(models: Models, contender: Contender, batches: Sequence[Batch], workload: Workload) -> Prediction:
    """Let a rule with a closed form sample, and compare what it keeps with what it should.

    The text before a position decides p and q there, so what the rule keeps is a draw with the closed form's
    probability at every position that it judged: all but those of bonus tokens.

    Parameters
    ----------
    models, batches, workload
        As in :func:`~hf_lossy_assist.bench.matchup.play`; batches of one prompt, sampled.
    contender
        One whose mode is in :data:`CLOSED_FORMS`.
    """
    config = contender.config
    mode, settings = config["lossy_mode"], config["lossy_config"]
    kept: list[bool] = []
    expected, lossless, bounds = [], [], []
    for batch in batches:
        trial = attempt(models, contender, batch, workload)
        judged = torch.tensor([kind != "bonus" for kind in trial.stats.trace])
        kept += [kind.startswith("accepted") for kind in trial.stats.trace if kind != "bonus"]
        p, q = (
            laws_along(model, batch.ids[0], trial.rows[0], workload.temperature)[judged]
            for model in (models.target, models.draft)
        )
        expected.append(CLOSED_FORMS[mode](p, q, **settings))
        lossless.append(lossless_acceptance(p, q))
        beta = _beta(mode, settings)
        bounds.append(beta * (1 - p.amax(-1)) * (q * (p < q)).sum(-1))
    alpha = torch.cat(expected)
    return Prediction(
        label=contender.label,
        positions=len(kept),
        measured=sum(kept) / len(kept),
        predicted=alpha.mean().item(),
        margin=1.96 * math.sqrt((alpha * (1 - alpha)).sum().item()) / len(kept),
        gain=(alpha - torch.cat(lossless)).mean().item(),
        bound=torch.cat(bounds).mean().item(),
    )


@torch.inference_mode()
def laws_along(model: PreTrainedModel, prompt: Tensor, tokens: Tensor, temperature: float) -> Tensor:
    """Return ``(n, V)`` a model's law of each of ``tokens``, given the prompt and the tokens before it."""
    ids = torch.cat([prompt, tokens])[None, :-1].to(model.device)
    logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 :].double().cpu()
    return (logits / temperature).softmax(-1)


def _beta(mode: str, settings: Mapping[str, Any]) -> float:
    return settings.get("beta", 0.1) if mode == "ears" else 0.0
