"""Judge heads from labelled mismatches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from ..errors import LossyValueError
from ..heads import JudgeConfig, JudgeHead, ThresholdRow, columns
from ..heads.repository import ROC
from .classifiers import STRENGTHS, Fit, best, fit_logistic, folded
from .examples import Examples, check
from .plots import Curve, draw_roc
from .provenance import Origin, of_training
from .scores import RECALLS, auc_interval, largest_threshold, recall_rows
from .splitting import validation_mask


@dataclass(frozen=True)
class JudgeSettings:
    """How a judge head is trained.

    Attributes
    ----------
    models, positions
        Which states it reads; see :mod:`hf_lossy_assist.heads.features`.
    recall
        Share of important tokens that its default threshold has to find on validation.
    validation_share
        Part of the prompts that is kept for validation.
    strengths
        The grid of scikit-learn's ``C``.
    seed
        Of the split.

    Examples
    --------
    >>> JudgeSettings(recall=90)
    Traceback (most recent call last):
        ...
    hf_lossy_assist.errors.LossyValueError: `recall` has to be above 0 and at most 1, but is 90
    """

    models: str = "target"
    positions: str = "draft"
    recall: float = 0.9
    validation_share: float = 0.1
    strengths: tuple[float, ...] = STRENGTHS
    seed: int = 0

    def __post_init__(self) -> None:
        columns(self.models, self.positions)
        if not 0 < self.recall <= 1:
            raise LossyValueError(f"`recall` has to be above 0 and at most 1, but is {self.recall}")
        if not 0 < self.validation_share < 1:
            raise LossyValueError(f"`validation_share` has to be between 0 and 1, but is {self.validation_share}")

    @property
    def columns(self) -> list[str]:
        """The states that the head reads, in order."""
        return columns(self.models, self.positions)


@dataclass(frozen=True, eq=False)
class TrainedJudge:
    """A judge head, and the data it was trained and validated on.

    Attributes
    ----------
    head
        The folded head.
    fits
        One logistic regression for each strength.
    train, validation
        The two sides of the split.
    """

    head: JudgeHead
    fits: tuple[Fit, ...]
    train: Examples
    validation: Examples

    def save(self, folder: Path) -> None:
        """Write the head, its model card and its ROC curve into ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        chosen = best(self.fits)
        curves = [
            Curve("validation", self.validation.labels, chosen.validation),
            Curve("training", self.train.labels, chosen.train, style=":"),
        ]
        title = f"Judge head for {self.head.config.task}"
        # The card, which `save_pretrained` writes, shows the plots that it finds.
        draw_roc(
            curves,
            folder / ROC,
            title=title,
            positive="important tokens found",
            others="unimportant tokens taken for important",
        )
        self.head.save_pretrained(folder)


def train_judge(
    examples: Examples,
    origin: Origin,
    settings: JudgeSettings = JudgeSettings(),
    *,
    on_fit: Callable[[Fit], None] = lambda fit: None,
    **notes: Any,
) -> TrainedJudge:
    """Train a judge head: standardisation and logistic regression, folded into one weight and one bias.

    Garipov et al. 2025 (AutoJudge), section 4.1 and appendix B. 90 % of the prompts train; on the other 10 % the
    regularisation is chosen by ROC-AUC, and the threshold and its table are measured with the folded head itself.

    Parameters
    ----------
    examples
        Labelled mismatches, True for important.
    origin
        Where they come from.
    settings
        How to train.
    on_fit
        Called after each of the logistic regressions.
    notes
        For the head's provenance.

    Raises
    ------
    LossyValueError
        When the examples can't be learnt from.

    Examples
    --------
    >>> import numpy as np
    >>> from hf_lossy_assist.heads import ModelIdentity
    >>> rng = np.random.default_rng(0)
    >>> states, prompts = rng.normal(size=(400, 4)).astype("f4"), np.repeat(np.arange(100), 4)
    >>> examples = Examples({"target_draft": states}, states[:, 0] + 0.1 * states[:, 1] > 1, prompts)
    >>> identity = ModelIdentity("org/llama", None, "LlamaForCausalLM", hidden_size=4, vocab_size=1000)
    >>> head = train_judge(examples, Origin(identity, identity, "gsm8k")).head
    >>> head.config.metrics["auc"] > 0.99, head.weight.shape
    (True, torch.Size([4]))
    """
    train, validation = split(examples.only(settings.columns), settings)
    fits = fit_logistic(settings.columns, train, validation, strengths=settings.strengths, on_fit=on_fit)
    chosen = best(fits)
    config = JudgeConfig(
        target=origin.target,
        draft=origin.draft,
        task=origin.task,
        models=settings.models,
        positions=settings.positions,
        threshold=0.5,
        provenance=of_training(origin, asdict(settings), **notes),
    )
    head = JudgeHead(config, *folded(chosen))
    # What is measured is what is shipped: the folded head in float32.
    seen, unseen = (probabilities(head, side) for side in (train, validation))
    threshold = largest_threshold(validation.labels, unseen, settings.recall)
    rows = recall_rows(validation.labels, unseen, sorted({*RECALLS, settings.recall}))
    low, high = auc_interval(validation.labels, unseen, validation.prompts, seed=settings.seed)
    metrics = {
        "auc": float(roc_auc_score(validation.labels, unseen)),
        "auc_low": low,
        "auc_high": high,
        "train_auc": float(roc_auc_score(train.labels, seen)),
        "C": float(chosen.classifier[-1].C),
        "recall": float((unseen[validation.labels] >= threshold).mean()),
        "skipped": float((unseen < threshold).mean()),
        **examples.counts(),
        **{f"validation_{name}": value for name, value in validation.counts().items()},
    }
    head.config = replace(
        config, threshold=threshold, thresholds=tuple(ThresholdRow(*row) for row in rows), metrics=metrics
    )
    return TrainedJudge(head, tuple(fits), train, validation)


def split(examples: Examples, settings: JudgeSettings) -> tuple[Examples, Examples]:
    """Return the training and the validation side, always the same for the same settings.

    Raises
    ------
    LossyValueError
        When the examples can't be learnt from.
    """
    check(examples)
    mask = validation_mask(examples.labels, examples.prompts, share=settings.validation_share, seed=settings.seed)
    return examples.where(~mask), examples.where(mask)


def probabilities(head: JudgeHead, examples: Examples) -> NDArray[np.float32]:
    """Return ``(N,)`` what the head makes of the examples."""
    return head.probability(torch.from_numpy(examples.features(head.config.columns))).numpy()
