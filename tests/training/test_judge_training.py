"""Judge heads against scikit-learn, on data whose best classifier is known."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.store import folder
from hf_lossy_assist.training.examples import Examples
from hf_lossy_assist.training.head_training import JudgeSettings, folds_of, train_judge
from tests.training.synthetic import DRAFT, ORIGIN, TARGET, by_hand, judged, rows_of


@pytest.mark.parametrize(("model", "positions"), [("target", "draft"), ("draft", "previous"), ("target", "both")])
def test_one_weight_and_one_bias_say_what_scikit_learn_says(model, positions):
    examples = judged(prompts=60)
    if model == "draft":  # the target was behind an API
        examples = examples.only(["draft_previous", "draft_draft"])
    trained = train_judge(examples, ORIGIN, JudgeSettings(positions, strengths=(0.1,)))
    config = trained.head.config
    assert (config.models, config.positions, config.target, config.draft) == (model, positions, TARGET, DRAFT)
    features = examples.features(config.columns)
    expected = by_hand(examples, config.columns, 0.1)
    np.testing.assert_allclose(trained.head.probability(torch.from_numpy(features)), expected, atol=1e-4)
    np.testing.assert_allclose(trained.fitted, expected, atol=1e-4)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_head_fitted_by_hand_judges_each_fold(weighted):
    """Scores out of fold choose the strength."""
    examples = judged(seed=3, prompts=60)
    if weighted:
        examples = replace(examples, weights=1.0 + examples.prompts % 5)
    strengths = (1e-4, 1e-2, 1.0)
    trained = train_judge(examples, ORIGIN, JudgeSettings(positions="draft", strengths=strengths))
    scores = np.empty((3, len(examples)))
    for others, inside in folds_of(examples):
        for i, strength in enumerate(strengths):
            scores[i, inside] = by_hand(examples, ["target_draft"], strength, others)[inside]

    def area(row):
        return roc_auc_score(examples.labels, row, sample_weight=examples.weights)

    areas = [area(row) for row in scores]
    np.testing.assert_allclose(trained.probabilities, scores[int(np.argmax(areas))], atol=1e-4)
    metrics = trained.head.config.metrics
    assert metrics["auc"] == pytest.approx(area(trained.probabilities))
    assert metrics["C"] == strengths[int(np.argmax(areas))]
    final = by_hand(examples, ["target_draft"], metrics["C"])
    np.testing.assert_allclose(trained.fitted, final, atol=1e-4)
    assert metrics["train_auc"] == pytest.approx(area(final), abs=1e-3)


def test_a_weight_is_as_many_tokens():
    examples = judged(prompts=40)
    heavy = replace(examples, weights=1.0 + (examples.prompts // 7) % 3)
    times = heavy.weights.astype(int)
    copies = rows_of(examples, np.repeat(np.arange(len(examples)), times))
    one = train_judge(heavy, ORIGIN, JudgeSettings(positions="draft", strengths=(0.1,)))
    # scikit-learn's C counts rows: as many copies of a row need a smaller one.
    config = one.head.config
    other = by_hand(copies, config.columns, 0.1 / heavy.weights.mean())
    np.testing.assert_allclose(np.repeat(one.fitted, times), other, atol=1e-4)
    scores = np.repeat(one.probabilities, times)
    assert config.metrics["auc"] == pytest.approx(roc_auc_score(copies.labels, scores))
    assert config.metrics["important_share"] == pytest.approx(copies.labels.mean())
    important = scores[copies.labels]
    for row in config.thresholds:
        assert row.recall == pytest.approx((important >= row.threshold).mean())
        assert row.skipped == pytest.approx((scores < row.threshold).mean())


def test_the_best_possible_ranking_is_found():
    """One unit of the state is moved by 2 standard deviations: the area is Phi(2 / sqrt(2)) = 0.921."""
    metrics = train_judge(judged(prompts=1000), ORIGIN, JudgeSettings(strengths=(0.01, 1.0))).head.config.metrics
    assert metrics["auc_low"] < norm.cdf(np.sqrt(2)) < metrics["auc_high"]
    assert metrics["auc"] == pytest.approx(norm.cdf(np.sqrt(2)), abs=0.03)


def test_a_head_that_knows_nothing_is_seen_through():
    """More units than tokens: such a head knows its own prompts by heart, and is at chance on others."""
    rng = np.random.default_rng(0)
    states = {"target_draft": rng.normal(size=(400, 300)).astype(np.float32)}
    examples = Examples(states, rng.random(400) < 0.3, np.repeat(np.arange(80), 5))
    identity = replace(TARGET, hidden_size=300)
    metrics = train_judge(
        examples, replace(ORIGIN, target=identity), JudgeSettings(positions="draft")
    ).head.config.metrics
    assert metrics["train_auc"] > 0.9
    # Its standard error is 0.03.
    assert abs(metrics["auc"] - 0.5) < 0.1
    assert metrics["auc_low"] < 0.5 < metrics["auc_high"]


def test_the_better_state_is_read():
    trained = train_judge(judged(), ORIGIN, JudgeSettings(strengths=(0.01, 1.0)))
    config, metrics = trained.head.config, trained.head.config.metrics
    assert (config.positions, metrics["auc"]) == ("draft", pytest.approx(metrics["auc_draft"], abs=1e-4))
    assert metrics["auc_draft"] > metrics["auc_previous"]
    other = train_judge(judged(), ORIGIN, JudgeSettings(positions="previous", strengths=(0.01, 1.0)))
    assert other.head.config.positions == "previous"
    assert other.head.config.metrics["auc"] == pytest.approx(metrics["auc_previous"], abs=1e-4)
    assert "auc_draft" not in other.head.config.metrics


@pytest.mark.parametrize("recall", [0.9, 0.96, 1.0])
def test_thresholds_are_measured_out_of_fold(recall):
    trained = train_judge(judged(prompts=200), ORIGIN, JudgeSettings(positions="draft", recall=recall))
    head, scores, labels = trained.head, trained.probabilities, trained.examples.labels
    important = scores[labels]
    assert (important >= head.config.threshold).mean() >= recall
    assert all((important >= larger).mean() < recall for larger in scores if larger > head.config.threshold)
    assert head.threshold_for(recall) == head.config.threshold
    assert len(head.config.thresholds) >= 10
    for row in head.config.thresholds:
        assert row.recall == pytest.approx((important >= row.threshold).mean())
        assert row.skipped == pytest.approx((scores < row.threshold).mean())


def test_figures_and_origin_are_in_the_configuration():
    origin = replace(ORIGIN, data={"sha256": "f00"})
    trained = train_judge(judged(), origin, JudgeSettings(seed=4, strengths=(0.01, 1.0)))
    config = trained.head.config
    assert config.task == "arithmetic"
    assert config.provenance["data"] == {"sha256": "f00"}
    assert config.provenance["training"]["seed"] == 4
    assert {"torch", "scikit-learn", "hf_lossy_assist"} <= set(config.provenance["versions"])
    assert config.provenance["argv"][0] == "python"
    assert (config.metrics["prompts"], config.metrics["tokens"]) == (120, 600)
    assert config.metrics["important_share"] == pytest.approx(0.3, abs=0.06)
    assert config.metrics["folds"] == 5
    again, other = (
        train_judge(judged(), origin, JudgeSettings(seed=seed, strengths=(0.01, 1.0))).head for seed in (4, 5)
    )
    assert torch.equal(again.weight, trained.head.weight)
    assert again.config.metrics == config.metrics != other.config.metrics


def test_the_origin_names_no_folders_of_the_machine(monkeypatch):
    given = ["train", "judge", "--data", "/home/me/mined", "--assistant", "../draft", "--config=/home/me/run.toml"]
    monkeypatch.setattr(folder, "typed", ContextVar("typed", default=tuple(given)))
    mining = {"settings": {"task_data": "/home/me/train.jsonl", "split": "train"}, "runs": [{"argv": given}]}
    provenance = replace(ORIGIN, data=mining).config_fields({"seed": 0})["provenance"]
    bare = ["train", "judge", "--data", "mined", "--assistant", "draft", "--config=run.toml"]
    assert provenance["argv"] == ["lossy-assist", *bare]
    assert provenance["data"] == {"settings": {"task_data": "train.jsonl", "split": "train"}, "runs": [{"argv": bare}]}


def test_a_unit_that_never_varies_is_no_trouble():
    examples = judged()
    examples.states["target_draft"][:, 2] = 7
    head = train_judge(examples, ORIGIN).head
    assert head.weight.isfinite().all()
    assert head.config.metrics["auc"] > 0.8


def test_unused_states_may_be_broken():
    examples = judged()
    examples.states["target_previous"][:] = np.nan
    train_judge(examples, ORIGIN, JudgeSettings("draft"))
    with pytest.raises(LossyValueError, match="'target_previous'"):
        train_judge(examples, ORIGIN, JudgeSettings("previous"))
