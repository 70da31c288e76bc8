"""Importing AutoJudge's heads, and refusing files that hold something else."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from typer.testing import CliRunner

from hf_lossy_assist import JudgeHead, LossyValueError
from hf_lossy_assist.cli import app
from tests.heads.pickled import (
    DRAFT,
    TARGET,
    THRESHOLDS,
    Calls,
    assert_refused_cheaply,
    convert,
    data,
    for_vllm,
    official,
    trained,
    write_pickle,
)
from tests.tiny_models import tiny


def assert_same_probabilities(head: JudgeHead, pipeline: Pipeline, order: list[int] | None = None) -> None:
    x, _ = data(head.config.width)
    expected = torch.from_numpy(pipeline.predict_proba(x)[:, 1]).double()
    features = torch.from_numpy(x)
    found = head.probability(features if order is None else features[:, order])
    assert torch.allclose(found.double(), expected, atol=1e-5)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("layout", [official, for_vllm, lambda pipeline: pipeline])
def test_probabilities_are_those_of_scikit_learn(layout: Callable, protocol: int, path: Path):
    pipeline = trained(24)
    write_pickle(layout(pipeline), path, protocol)
    head = convert(path)
    assert (head.config.models, head.config.positions) == ("target", "draft")
    assert_same_probabilities(head, pipeline)


@pytest.mark.parametrize("compress", [0, 3, ("gzip", 3), ("bz2", 3), ("xz", 3), ("lzma", 3)])
@pytest.mark.parametrize("layout", [official, for_vllm, lambda pipeline: pipeline])
def test_joblib(layout: Callable, compress: Any, path: Path):
    pipeline = trained(24)
    joblib.dump(layout(pipeline), path, compress=compress)
    assert_same_probabilities(convert(path), pipeline)


def test_features_of_both_models_change_places(path: Path):
    pipeline = trained(32)
    head = convert(write_pickle(official(pipeline), path))
    assert head.config.columns == ["target_draft", "draft_draft"]
    # Theirs is the draft's 8 numbers and then the target's 24; ours the other way round.
    assert_same_probabilities(head, pipeline, order=[*range(8, 32), *range(8)])


@pytest.mark.parametrize(("mean", "std"), [(False, True), (True, False), (False, False)])
def test_standardisation_that_leaves_something_out(mean: bool, std: bool, path: Path):
    pipeline = trained(24, with_mean=mean, with_std=std)
    head = convert(write_pickle(pipeline, path))
    assert_same_probabilities(head, pipeline)


def test_one_head_per_fold(path: Path):
    heads = [trained(24), trained(24, with_mean=False)]
    write_pickle([official(pipeline) for pipeline in heads], path)
    for part, pipeline in enumerate(heads):
        assert_same_probabilities(convert(path, part=part), pipeline)
    for part in (None, 2, -1):
        with pytest.raises(LossyValueError, match="holds 2 heads, one per fold: `fold` has to be between 0 and 1"):
            convert(path, part=part)


def test_what_the_head_remembers(path: Path, tmp_path: Path):
    head = convert(write_pickle(official(trained(24)), path), threshold=0.4)
    head.save_pretrained(tmp_path / "head")
    config = JudgeHead.from_pretrained(tmp_path / "head").config
    assert (config.task, config.threshold, config.target, config.draft) == ("gsm8k", 0.4, TARGET, DRAFT)
    assert config.provenance["imported_from"] == "head.pkl"
    assert config.provenance["published_thresholds"] == pytest.approx(THRESHOLDS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "has to hold a dict with a LogisticRegression as 'model'"),
        (7, "but holds int"),
        ({"weights": np.ones(24)}, "but holds {'weights': 'ndarray'}"),
        (
            {"model": StandardScaler(), "scaler": StandardScaler()},
            "but holds {'model': 'StandardScaler', ",
        ),
        ({"model": 1, "scaler": 2}, "but holds {'model': 'int', 'scaler': 'int'}"),
        (
            official(make_pipeline(StandardScaler(), LogisticRegression())),
            "`classes_` has to be .* the estimator has to be fitted",
        ),
        (for_vllm(trained(24)) | {"mean": "much"}, "`mean` has to be an array of numbers"),
        (for_vllm(trained(24)) | {"mean": np.array(["a"])}, "`mean` has to be an array of numbers"),
        (for_vllm(trained(24)) | {"mean": np.array([{}])}, "`mean` has to be an array of numbers"),
        (for_vllm(trained(24)) | {"mean": np.ones(3)}, "3, 24, 24 and 1 values"),
        (for_vllm(trained(24)) | {"scale": np.zeros(24)}, "`scale` has to be nonzero"),
        (for_vllm(trained(24)) | {"weights": np.full(24, np.nan)}, "`weight`.* have to be finite"),
        (for_vllm(trained(23)), r"has 23 coefficients, but .* 24 \(target\) and 8 \(draft\)"),
        (make_pipeline(StandardScaler()), "Pipeline with both as `steps`, but holds Pipeline"),
    ],
)
def test_files_that_hold_something_else(content: Any, message: str, path: Path, tmp_path: Path):
    write_pickle(content, path)
    with pytest.raises(LossyValueError, match=message):
        convert(path).save_pretrained(tmp_path / "head")


def test_other_classes(path: Path):
    x, y = data(24)
    write_pickle(make_pipeline(StandardScaler(), LogisticRegression()).fit(x, np.where(y, 2, 1)), path)
    with pytest.raises(LossyValueError, match=r"tell `classes_` \[0, 1\] apart"):
        convert(path)
    write_pickle(make_pipeline(StandardScaler(), LogisticRegression()).fit(x, np.arange(200) % 3), path)
    with pytest.raises(LossyValueError, match=r"tell `classes_` \[0, 1\] apart"):
        convert(path)


HUGE = 10**400
MALFORMED = {
    "thresholds, a number": (lambda head: head.update(thresholds=3), "`thresholds`"),
    "thresholds, huge": (lambda head: head.update(thresholds=[0.5, HUGE]), "`thresholds`"),
    "thresholds, a text": (lambda head: head.update(thresholds="0.5"), "`thresholds`"),
    "thresholds, texts": (lambda head: head.update(thresholds=["0.5"]), "`thresholds`"),
    "mean, huge": (lambda head: head.update(mean=[HUGE] * 24), "`mean`"),
    "mean, infinite": (lambda head: head.update(mean=np.full(24, np.inf)), "finite"),
    "scale, tiny": (lambda head: head.update(scale=np.full(24, 1e-300)), "finite"),
    "weights, large": (lambda head: head.update(weights=np.full(24, 1e300)), "finite"),
    "weights, None": (lambda head: head.update(weights=None), "`weights`"),
    "weights, a text": (lambda head: head.update(weights="w" * 100_000), "`weights`"),
    "weights, a dict": (lambda head: head.update(weights={}), "`weights`"),
    "weights, of numbers and lists": (lambda head: head.update(weights=[1.0, [2.0]]), "`weights`"),
    "bias, a dtype": (lambda head: head.update(bias=np.dtype("f8")), "`bias`"),
    "bias, a class": (lambda head: head.update(bias=StandardScaler), "`bias`"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_fields_are_named(name: str, path: Path):
    change, message = MALFORMED[name]
    head = for_vllm(trained(24))
    change(head)
    write_pickle(head, path)
    assert_refused_cheaply(path, message)


@pytest.mark.parametrize("steps", [None, 3, "ab", [1, 2], [("a",), ("b",)], [("a", 1, 2)] * 2, {"a": 1, "b": 2}])
def test_malformed_pipelines_are_named(steps: Any, path: Path):
    pipeline = trained(24)
    pipeline.__dict__["steps"] = steps
    write_pickle(pipeline, path)
    assert_refused_cheaply(path, "`steps`|Pipeline|StandardScaler")


@pytest.mark.parametrize("change", [{"coef_": 1.0}, {"coef_": None}, {"classes_": None}, {"classes_": HUGE}])
@pytest.mark.parametrize("layout", [official, lambda pipeline: pipeline])
def test_malformed_estimators_are_named(change: dict[str, Any], layout: Callable, path: Path):
    pipeline = trained(24)
    vars(pipeline[1]).update(change)
    write_pickle(layout(pipeline), path)
    assert_refused_cheaply(path, "|".join(change))


@pytest.fixture
def models(tmp_path: Path) -> list[str]:
    for name, architecture in (("target", "llama"), ("draft", "gpt2")):
        tiny(architecture).save_pretrained(tmp_path / name)
    return ["--model", str(tmp_path / "target"), "--assistant", str(tmp_path / "draft")]


def run(*arguments: str):
    return CliRunner().invoke(app, ["import-autojudge", *arguments], env={"COLUMNS": "200"})


def test_command(models: list[str], path: Path, tmp_path: Path):
    pipeline = trained(64)
    write_pickle(official(pipeline), path)
    out = tmp_path / "head"
    result = run(str(path), "--out", str(out), *models, "--task", "gsm8k", "--threshold", "0.1")
    assert result.exit_code == 0, result.output
    assert "64 weights" in result.output
    assert "Thresholds in the file: 0.01, " in result.output
    head = JudgeHead.from_pretrained(out)
    assert (head.config.task, head.config.threshold, head.config.models) == ("gsm8k", 0.1, "both")
    assert_same_probabilities(head, pipeline, order=[*range(32, 64), *range(32)])
    head.check(tiny("llama"), tiny("gpt2"))
    with pytest.raises(LossyValueError, match="architecture"):
        head.check(tiny("gpt2"), tiny("gpt2"))
    assert json.loads((out / "config.json").read_text())["provenance"]["imported_from"] == "head.pkl"


def test_command_says_what_is_wrong_in_one_line(models: list[str], path: Path, tmp_path: Path):
    write_pickle(Calls(os.system, f"touch {tmp_path / 'marker'}"), path)
    result = run(str(path), "--out", str(tmp_path / "head"), *models)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert "nothing was run" in result.stderr
    assert not (tmp_path / "head").exists()
    assert not (tmp_path / "marker").exists()
    result = run(str(path), "--out", str(tmp_path / "head"), "--model", str(tmp_path), "--assistant", str(tmp_path))
    assert result.exit_code == 2
    assert "`--model` has to be" in result.stderr
