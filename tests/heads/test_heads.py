"""Scores, files and configurations of heads."""

from __future__ import annotations

import json
import operator
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from transformers import PreTrainedModel

from hf_lossy_assist import JudgeHead, LossyValueError, VerifierHead, pairs
from hf_lossy_assist.heads import (
    Head,
    JudgeConfig,
    ModelIdentity,
    ThresholdRow,
    VerifierConfig,
    columns,
    load_head,
    place_head,
)
from tests.tiny_models import tiny

SMALL = ModelIdentity("org/small", None, "LlamaForCausalLM", 8, 100)
LARGE = ModelIdentity("org/large", None, "LlamaForCausalLM", 24, 100)

HEADS = sorted(path.parent for path in pairs.hub_cards().glob("*/roc.png"))


LINEAR = {"target": LARGE, "draft": SMALL, "task": "gsm8k", "threshold": 0.3}


def judge_config(**changes) -> JudgeConfig:
    return JudgeConfig(**LINEAR | changes)


def verifier_config(**changes) -> VerifierConfig:
    return VerifierConfig(**{"target": LARGE, "draft": SMALL, "task": "gsm8k", "ratio": 1.5, **changes})


def edit(folder: Path, change: Callable[[dict], object]) -> None:
    """Change what stands in config.json."""
    values = json.loads((folder / "config.json").read_text())
    change(values)
    (folder / "config.json").write_text(json.dumps(values))


@pytest.fixture
def saved(judge: JudgeHead, tmp_path: Path) -> Path:
    judge.save_pretrained(tmp_path / "judge")
    return tmp_path / "judge"


@pytest.mark.parametrize(
    ("models", "positions", "names"),
    [
        ("target", "draft", ["target_draft"]),
        ("draft", "previous", ["draft_previous"]),
        ("target", "both", ["target_previous", "target_draft"]),
        ("both", "draft", ["target_draft", "draft_draft"]),
        ("both", "both", ["target_previous", "target_draft", "draft_previous", "draft_draft"]),
    ],
)
def test_columns(models: str, positions: str, names: list[str]):
    assert columns(models, positions) == names
    width = sum(24 if name.startswith("target") else 8 for name in names)
    assert judge_config(models=models, positions=positions).width == width


def classifier(width: int, **scaling: bool) -> tuple[torch.Tensor, StandardScaler, LogisticRegression]:
    """Features ``(400, width)`` of very different scales, and a standardised logistic regression on them."""
    scales = torch.logspace(-1, 2, width, dtype=torch.float64)
    x = torch.randn(400, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * scales + 5
    y = (((x - 5) / scales)[:, 3:8].sum(1) > 0).numpy()
    scaler = StandardScaler(**scaling).fit(x.numpy())
    return x, scaler, LogisticRegression(C=0.1, max_iter=2000).fit(scaler.transform(x.numpy()), y)


@pytest.mark.parametrize(
    ("models", "width", "scaling", "flat"),
    [
        ("target", 24, {}, False),
        ("both", 32, {}, True),
        ("both", 32, {"with_mean": False}, False),
        ("target", 24, {"with_std": False}, True),
    ],
)
def test_linear_classifiers_keep_the_probabilities_of_scikit_learn(models: str, width: int, scaling: dict, flat: bool):
    x, scaler, model = classifier(width, **scaling)
    arrays = (model.coef_[0], model.intercept_[0]) if flat else (model.coef_, model.intercept_)
    mean = scaler.mean_ if scaler.with_mean else None
    head = JudgeHead.from_linear(*arrays, mean=mean, scale=scaler.scale_, **LINEAR, models=models)
    assert (head.weight.dtype, head.weight.shape, head.bias.shape) == (torch.float32, (width,), ())
    expected = torch.from_numpy(model.predict_proba(scaler.transform(x.numpy()))[:, 1])
    assert torch.allclose(head.probability(x.float()).double(), expected, atol=2e-5)


def test_a_linear_head_belongs_to_its_models(target: PreTrainedModel, draft: PreTrainedModel, tmp_path: Path):
    rows = (ThresholdRow(0.3, 0.9, 0.5),)
    own = {"target": target, "draft": draft, "thresholds": rows, "provenance": {"from": "a pickle"}}
    JudgeHead.from_linear(torch.ones(32), 0, **LINEAR | own).save_pretrained(tmp_path)
    head = JudgeHead.from_pretrained(tmp_path)
    head.check(target, draft)
    assert (head.config.threshold, head.config.thresholds, head.config.provenance) == (0.3, rows, {"from": "a pickle"})
    with pytest.raises(LossyValueError, match="architecture"):
        head.check(tiny("gpt2"), draft)


ONES = [1.0] * 24


@pytest.mark.parametrize(
    ("argument", "changes"),
    [
        ("weight", {"weight": ONES[:8]}),
        ("weight", {"weight": [torch.nan] * 24}),
        ("weight", {"models": "draft"}),
        ("scale", {"scale": [*ONES[:23], 0.0]}),
        ("scale", {"scale": [1e-300] * 24}),
        ("threshold", {"threshold": 2.0}),
    ],
)
def test_linear_classifiers_that_do_not_fit(argument: str, changes: dict):
    with pytest.raises(LossyValueError, match=f"`{argument}`"):
        JudgeHead.from_linear(**{"weight": ONES, "bias": 0.0} | LINEAR | changes)


def test_score_is_one_dot_product_in_float32(judge: JudgeHead):
    features = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(1))
    weight = judge.weight.tolist()
    expected = torch.tensor([[sum(map(operator.mul, x, weight)) for x in row] for row in features.tolist()])
    assert torch.allclose(judge.logit(features), expected + judge.bias, atol=1e-5)
    assert torch.equal(judge(features), judge.logit(features).sigmoid())
    half = features.bfloat16()
    assert judge.logit(half).dtype == torch.float32
    assert torch.equal(judge.logit(half), judge.logit(half.float()))


def test_new_heads_are_nan_and_frozen():
    head = VerifierHead(verifier_config())
    assert all(x.isnan().all() and not x.requires_grad for x in head.parameters())
    assert head.probability(torch.zeros(8)).isnan()


@pytest.mark.parametrize(("recall", "threshold"), [(0.75, 0.5), (0.8, 0.5), (0.81, 0.125), (0.9, 0.125), (0.95, 0.01)])
def test_threshold_for(judge: JudgeHead, recall: float, threshold: float):
    assert judge.threshold_for(recall) == threshold


@pytest.mark.parametrize(
    ("argument", "make"),
    [
        ("weight", lambda judge: JudgeHead(judge_config(), torch.zeros(8), 0.0)),
        ("bias", lambda judge: VerifierHead(verifier_config(), torch.zeros(8), torch.zeros(1))),
        ("recall", lambda judge: judge.threshold_for(0.999)),
        ("recall", lambda judge: judge.threshold_for(90)),
        ("threshold", lambda judge: JudgeHead(judge_config()).threshold_for(0.9)),
        ("threshold", lambda judge: judge_config(threshold=float("nan"))),
        ("metrics", lambda judge: judge_config(metrics={"auc": float("nan")})),
        ("provenance", lambda judge: judge_config(provenance={"seed": {1, 2}})),
        ("models", lambda judge: judge_config(models="all")),
        ("positions", lambda judge: columns("target", "")),
        ("position", lambda judge: verifier_config(position="draft")),
        ("ratio", lambda judge: verifier_config(ratio=0)),
    ],
)
def test_heads_and_configurations_that_cannot_be(judge: JudgeHead, argument: str, make: Callable[[JudgeHead], object]):
    with pytest.raises(LossyValueError, match=f"`{argument}`"):
        make(judge)


@pytest.mark.parametrize("kind", ["judge", "verifier"])
def test_save_and_load(kind: str, request: pytest.FixtureRequest, tmp_path: Path):
    head = request.getfixturevalue(kind)
    head.to(torch.bfloat16).save_pretrained(tmp_path)  # in full
    assert load_file(tmp_path / "model.safetensors")["weight"].dtype == torch.float32
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    for loaded in (type(head).from_pretrained(tmp_path), Head.from_pretrained(tmp_path)):
        assert type(loaded) is type(head)
        assert loaded.config == head.config
        assert torch.equal(loaded.weight, head.weight)
        assert torch.equal(loaded.bias, head.bias)
        assert not any(parameter.requires_grad for parameter in loaded.parameters())


@pytest.mark.parametrize("folder", HEADS, ids=lambda folder: folder.name)
def test_the_heads_of_hub_cards_load_and_are_saved_as_they_stand_there(folder: Path, tmp_path: Path):
    shutil.copy(folder / "roc.png", tmp_path)
    Head.from_pretrained(folder).save_pretrained(tmp_path)
    for path in folder.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_an_untrained_head_overwrites_nothing(saved: Path, judge: JudgeHead):
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    with pytest.raises(LossyValueError, match="train the head"):
        JudgeHead(judge.config).save_pretrained(saved)
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before


def test_keys_of_the_future_are_a_warning(saved: Path):
    edit(saved, lambda values: values.update(temperature=2.0))
    with pytest.warns(UserWarning, match=r"\['temperature'\]: they are ignored\. Upgrade hf_lossy_assist"):
        JudgeHead.from_pretrained(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.update(format_version=2), "format version 2"),
        (lambda v: v.update(type="verifier"), "'verifier'"),
        (lambda v: v.pop("threshold"), "'threshold'"),
        (lambda v: v["draft"].pop("hidden_size"), "`draft` .*'hidden_size'"),
        (lambda v: v.update(thresholds=[{"threshold": 0.5}]), "`thresholds` .*'recall', 'skipped'"),
        (lambda v: v.update(positions="both"), r"\(64,\).*\(32,\)"),
        (lambda v: v.update(weights_sha256="0" * 64), "config.json"),
    ],
)
def test_bad_configurations(saved: Path, change: Callable[[dict], object], message: str):
    edit(saved, change)
    with pytest.raises(LossyValueError, match=message):
        JudgeHead.from_pretrained(saved)


def test_a_folder_is_loaded_once_until_it_changes(saved: Path, judge: JudgeHead):
    head = load_head(JudgeHead, saved)
    assert load_head(JudgeHead, str(saved)) is head
    assert all(place_head("`lossy_head`", JudgeHead, name, "cpu") is head for name in (saved, str(saved)))
    JudgeHead(judge.config, judge.weight + 1, judge.bias).save_pretrained(saved)
    assert torch.equal(load_head(JudgeHead, saved).weight, head.weight + 1)
