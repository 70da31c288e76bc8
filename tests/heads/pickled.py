"""AutoJudge's files, as its scripts write them, and how others are refused."""

from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.heads import ModelIdentity
from hf_lossy_assist.heads.autojudge import import_head

TARGET = ModelIdentity("org/large", None, "LlamaForCausalLM", 24, 100)
DRAFT = ModelIdentity("org/small", None, "LlamaForCausalLM", 8, 100)
THRESHOLDS = np.linspace(0.01, 0.9, 26)
MOST_MEMORY = 200 << 20


def data(width: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x = (generator.normal(size=(200, width)) * np.logspace(-1, 2, width) + 5).astype(np.float32)
    return x, ((x - 5) / np.logspace(-1, 2, width))[:, :5].sum(1) > 0


def trained(width: int, **scaling: bool) -> Pipeline:
    x, y = data(width)
    return make_pipeline(StandardScaler(**scaling), LogisticRegression(C=0.1)).fit(x, y.astype(int))


def official(pipeline: Pipeline) -> dict:
    """As train_head_gsm8k.py dumps it."""
    return {"model": pipeline[1], "scaler": pipeline[0], "thresholds": THRESHOLDS.tolist()}


def for_vllm(pipeline: Pipeline) -> dict:
    """As train_head_gsm8k.py --convert_to_vllm dumps it."""
    scaler, model = pipeline
    return {
        "mean": scaler.mean_,
        "scale": scaler.scale_,
        "weights": model.coef_[0],
        "bias": model.intercept_,
        "thr": 0.25,
        "thresholds": THRESHOLDS.tolist(),
    }


def write_pickle(content: Any, path: Path, protocol: int = pickle.DEFAULT_PROTOCOL) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


class Calls:
    """Pickles as a call of ``function`` with ``arguments``."""

    def __init__(self, function: Callable, *arguments: Any, state: Any = None) -> None:
        self.recipe = (function, arguments, state)

    def __reduce__(self) -> tuple:
        return self.recipe


def assert_refused_cheaply(path: Path, message: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(LossyValueError, match=message) as caught:
            import_head(path, TARGET, DRAFT, task="gsm8k")
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 2000
