"""Judge heads in the layout of AutoJudge's published code."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import LossyValueError
from .folding import fold
from .identity import ModelIdentity
from .inert_pickle import StandIn, read, to_array
from .judge_head import JudgeConfig, JudgeHead

DEFAULT_THRESHOLD = 0.25
"""What AutoJudge writes into its vLLM heads as a placeholder."""


@dataclass(frozen=True)
class Classifier:
    """A logistic regression with its standardisation folded in.

    ``thresholds`` are those in the file: by quantile of the validation probabilities, so that the first lets nothing
    pass.
    """

    weight: Tensor
    bias: Tensor
    thresholds: tuple[float, ...]


def read_classifier(path: Path, part: int | None = None) -> Classifier:
    """Read what AutoJudge's training scripts or scikit-learn wrote, without running anything in it.

    ``path`` is a pickle or joblib file of a dict with ``model`` and ``scaler``, of a dict with ``mean``, ``scale``,
    ``weights`` and ``bias`` (for vLLM), of a Pipeline of both, or of a list of such, one per fold: ``part`` says which
    one, from 0. An error names the file and the field.
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
    try:
        return _classifier(content)
    except LossyValueError as error:
        raise LossyValueError(f"{str(path)!r} is not a judge head: {error}") from error


def import_head(
    path: Path,
    target: ModelIdentity,
    draft: ModelIdentity,
    *,
    task: str,
    threshold: float = DEFAULT_THRESHOLD,
    part: int | None = None,
) -> JudgeHead:
    """Return AutoJudge's head for these models, trained on ``task``, as one of ours.

    Its features are the states that have read the drafted token: the target's alone (``DT``), or the draft's and then
    the target's (``DD-DT``). The number of coefficients tells which of them. The file does not say which threshold has
    which recall, so ``threshold`` has to be chosen. ``path`` and ``part`` are as in :func:`read_classifier`.
    """
    classifier = read_classifier(path, part)
    weight = classifier.weight
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
    return JudgeHead(config, weight, classifier.bias)


def _classifier(content: Any) -> Classifier:
    if isinstance(content, StandIn) and content.kind == "Pipeline":
        match _state("Pipeline", content).get("steps"):
            case [[_, scaler], [_, model]]:
                return _from_estimators(scaler, model, [])
        raise LossyValueError("`steps` of its Pipeline have to be a StandardScaler and a LogisticRegression")
    fields = content if type(content) is dict else {}
    thresholds = fields.get("thresholds", [])
    if {"model", "scaler"} <= fields.keys():
        return _from_estimators(fields["scaler"], fields["model"], thresholds)
    if {"mean", "scale", "weights", "bias"} <= fields.keys():
        return _folded(*(to_array(name, fields[name]) for name in ("mean", "scale", "weights", "bias")), thresholds)
    found = [key[:40] for key in fields if isinstance(key, str)][:10] or _kind(content)
    raise LossyValueError(
        "it has to hold a dict with 'model' and 'scaler', one with 'mean', 'scale', 'weights' and 'bias', or a "
        f"Pipeline, but holds {found}"
    )


def _from_estimators(scaler: Any, model: Any, thresholds: Any) -> Classifier:
    moments, regression = _state("StandardScaler", scaler), _state("LogisticRegression", model)
    coef, classes = _fitted(regression, "coef_"), _fitted(regression, "classes_")
    if classes.tolist() != [0, 1] or coef.shape[:-1] != (1,):
        raise LossyValueError(
            "its LogisticRegression has to tell `classes_` [0, 1] apart, with 1 for important tokens, and has to have "
            f"one row of `coef_`, but has {classes.size} classes and `coef_` of the shape {coef.shape}"
        )
    # scikit-learn keeps moments that it was told not to use, or None.
    mean = _fitted(moments, "mean_") if moments.get("with_mean", True) else np.zeros(coef.shape[-1])
    scale = _fitted(moments, "scale_") if moments.get("with_std", True) else np.ones(coef.shape[-1])
    return _folded(mean, scale, coef, _fitted(regression, "intercept_"), thresholds)


def _folded(mean: np.ndarray, scale: np.ndarray, coef: np.ndarray, bias: np.ndarray, thresholds: Any) -> Classifier:
    weight, bias = fold(mean, scale, coef, bias)
    published = to_array("thresholds", thresholds)
    if published.ndim != 1:
        raise LossyValueError(f"its `thresholds` have to be a list of numbers, but are of the shape {published.shape}")
    for name, values in (("weight", weight), ("bias", bias), ("thresholds", torch.from_numpy(published))):
        if not values.isfinite().all():
            raise LossyValueError(f"its `{name}` has to be finite in float32, with the standardisation folded in")
    return Classifier(weight, bias, tuple(published.tolist()))


def _state(kind: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, StandIn) or value.kind != kind or type(value.state) is not dict:
        raise LossyValueError(f"it has to hold a {kind}, but holds a {_kind(value)}")
    return value.state


def _kind(value: Any) -> str:
    return value.kind if isinstance(value, StandIn) else type(value).__name__


def _fitted(state: Mapping[str, Any], name: str) -> np.ndarray:
    if name not in state:
        raise LossyValueError(f"it has to hold estimators that were fitted, but one has no `{name}`")
    return to_array(name, state[name])
