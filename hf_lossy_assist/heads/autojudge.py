"""Judge heads in the layout of AutoJudge's published code."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import LossyValueError
from .folding import fold
from .identity import ModelIdentity
from .inert_pickle import Inert, read, to_array
from .judge import JudgeConfig, JudgeHead

DEFAULT_THRESHOLD = 0.25
"""What AutoJudge writes into its vLLM heads as a placeholder."""


@dataclass(frozen=True)
class Classifier:
    """Standardisation and logistic regression, as scikit-learn has them.

    Parameters
    ----------
    mean, scale, coef
        ``(d,)``.
    intercept
        ``(1,)``.
    thresholds
        The thresholds in the file: by quantile of the validation probabilities, so that the first lets nothing pass.
    """

    mean: np.ndarray
    scale: np.ndarray
    coef: np.ndarray
    intercept: np.ndarray
    thresholds: tuple[float, ...] = ()


def read_classifier(path: Path, part: int | None = None) -> Classifier:
    """Read what AutoJudge's training scripts or scikit-learn wrote, without running anything in it.

    Parameters
    ----------
    path
        A pickle or joblib file of a dict with ``model`` and ``scaler``, of a dict with ``mean``, ``scale``,
        ``weights`` and ``bias`` (for vLLM), of a Pipeline of both, or of a list of such, one per fold.
    part
        Which one of a list, from 0.

    Raises
    ------
    LossyValueError
        When the file can't be read safely, or holds something else.
    """
    if not path.is_file():
        raise LossyValueError(f"{str(path)!r} is not a file")
    content = read(path)
    if isinstance(content, list):
        if part is None or not 0 <= part < len(content):
            raise LossyValueError(
                f"{str(path)!r} holds {len(content)} heads, one per fold: `fold` has to be between 0 and "
                f"{len(content) - 1}, but is {part}"
            )
        content = content[part]
    for layout in (_separate, _vllm, _pipeline):
        if (classifier := layout(content)) is not None:
            return classifier
    found = sorted(map(str, content)) if isinstance(content, Mapping) else type(content).__name__
    raise LossyValueError(
        f"{str(path)!r} has to hold a dict with 'model' and 'scaler', one with 'mean', 'scale', 'weights' and 'bias', "
        f"or a Pipeline, but holds {found}"
    )


def import_head(
    path: Path,
    target: ModelIdentity,
    draft: ModelIdentity,
    *,
    task: str,
    threshold: float = DEFAULT_THRESHOLD,
    part: int | None = None,
) -> JudgeHead:
    """Return AutoJudge's head as one of ours.

    Its features are the states that have read the drafted token: the target's alone (``DT``), or the draft's and
    then the target's (``DD-DT``). Which of them tells the number of coefficients.

    Parameters
    ----------
    path, part
        As in :func:`read_classifier`.
    target, draft
        The models it was trained for.
    task
        The name of the task it was trained on.
    threshold
        The file does not say which threshold has which recall.

    Raises
    ------
    LossyValueError
        When the file can't be read safely, or its head is not one for these models.
    """
    classifier = read_classifier(path, part)
    weight, bias = fold(classifier.mean, classifier.scale, classifier.coef, classifier.intercept)
    if len(weight) == target.hidden_size:
        models = "target"
    elif len(weight) == draft.hidden_size + target.hidden_size:
        models = "both"
        # Ours has the target first.
        weight = torch.cat([weight[draft.hidden_size :], weight[: draft.hidden_size]])
    else:
        raise LossyValueError(
            f"{str(path)!r} has {len(weight)} coefficients, but these models have hidden states of "
            f"{target.hidden_size} (target) and {draft.hidden_size} (draft); name the models it was trained for"
        )
    provenance = {
        "imported_from": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "published_thresholds": list(classifier.thresholds),
    }
    config = JudgeConfig(
        target=target,
        draft=draft,
        task=task,
        models=models,
        positions="draft",
        threshold=threshold,
        provenance=provenance,
    )
    return JudgeHead(config, weight, bias)


def _separate(content: Any) -> Classifier | None:
    if not isinstance(content, Mapping) or not {"model", "scaler"} <= set(content):
        return None
    return _classifier(content["scaler"], content["model"], content.get("thresholds", ()))


def _vllm(content: Any) -> Classifier | None:
    names = ("mean", "scale", "weights", "bias")
    if not isinstance(content, Mapping) or not set(names) <= set(content):
        return None
    return Classifier(*(to_array(name, content[name]) for name in names), _numbers(content.get("thresholds", ())))


def _pipeline(content: Any) -> Classifier | None:
    if not isinstance(content, Inert) or content.what != "Pipeline":
        return None
    steps = [step for _, step in _state("Pipeline", content).get("steps", ())]
    if len(steps) != 2:
        raise LossyValueError(
            f"the Pipeline has to be StandardScaler and LogisticRegression, but has {len(steps)} steps"
        )
    return _classifier(*steps)


def _classifier(scaler: Any, model: Any, thresholds: Any = ()) -> Classifier:
    moments, regression = _state("StandardScaler", scaler), _state("LogisticRegression", model)
    coef = _fitted(regression, "coef_")
    classes = _fitted(regression, "classes_")
    if classes.tolist() != [0, 1] or coef.shape[:-1] != (1,):
        raise LossyValueError(
            f"the LogisticRegression has to tell the classes [0, 1] apart, with 1 for important tokens, but it has "
            f"{classes.tolist()}"
        )
    # scikit-learn keeps moments that it was told not to use, or None.
    mean = _fitted(moments, "mean_") if moments.get("with_mean", True) else np.zeros(coef.shape[-1])
    scale = _fitted(moments, "scale_") if moments.get("with_std", True) else np.ones(coef.shape[-1])
    intercept = _fitted(regression, "intercept_")
    return Classifier(mean, scale, coef.flatten(), intercept, _numbers(thresholds))


def _state(what: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Inert) or value.what != what or not isinstance(value.state, Mapping):
        found = value.what if isinstance(value, Inert) else type(value).__name__
        raise LossyValueError(f"the pickle has to hold a {what}, but holds a {found} in its place")
    return value.state


def _fitted(state: Mapping[str, Any], name: str) -> np.ndarray:
    if name not in state:
        raise LossyValueError(f"the pickle has to hold estimators that were fitted, but one has no `{name}`")
    return to_array(name, state[name])


def _numbers(thresholds: Any) -> tuple[float, ...]:
    values = thresholds if isinstance(thresholds, Inert) else [to_array("thresholds", x) for x in thresholds]
    return tuple(to_array("thresholds", values).tolist())
