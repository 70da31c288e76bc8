"""Judge heads against scikit-learn, on data whose best classifier is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.heads import JudgeHead
from hf_lossy_assist.heads.repository import ROC
from hf_lossy_assist.training.judge_training import (
    JudgeSettings,
    best,
    compare,
    count,
    train_judge,
    train_judges_by_fold,
    variants,
)
from tests.training.synthetic import DRAFT, ORIGIN, TARGET, judged

CHOICES = [("target", "draft"), ("draft", "previous"), ("both", "draft"), ("target", "both"), ("both", "both")]


@pytest.mark.parametrize(("models", "positions"), CHOICES)
def test_one_weight_and_one_bias_say_what_scikit_learn_says(models, positions):
    examples = judged()
    trained = train_judge(examples, ORIGIN, JudgeSettings(models=models, positions=positions))
    config = trained.head.config
    assert (config.models, config.positions, config.target, config.draft) == (models, positions, TARGET, DRAFT)
    features = examples.features(config.columns)
    expected = best(trained.fits).classifier.predict_proba(features)[:, 1]
    np.testing.assert_allclose(trained.head.probability(torch.from_numpy(features)), expected, atol=1e-5)


def test_a_regression_fitted_by_hand():
    """Standardise, fit, rank: by formulas, with no code shared."""
    examples = judged(seed=3)
    trained = train_judge(examples, ORIGIN)
    train = np.isin(examples.prompts, trained.train.prompts)
    state = examples.states["target_draft"].astype(np.float64)
    centred = (state - state[train].mean(0)) / state[train].std(0)
    areas = {}
    for k in range(8):
        regression = LogisticRegression(C=10.0**-k, max_iter=500).fit(centred[train], examples.labels[train])
        areas[10.0**-k] = roc_auc_score(examples.labels[~train], regression.decision_function(centred[~train]))
    metrics = trained.head.config.metrics
    assert metrics["auc"] == pytest.approx(max(areas.values()), abs=1e-3)
    assert metrics["C"] in {c for c, area in areas.items() if area > max(areas.values()) - 1e-3}
    assert len(trained.fits) == 8


def test_the_best_possible_ranking_is_found():
    """One unit of the state is moved by 2 standard deviations: the area is Phi(2 / sqrt(2)) = 0.921."""
    metrics = train_judge(judged(prompts=2000), ORIGIN).head.config.metrics
    assert metrics["auc_low"] < norm.cdf(np.sqrt(2)) < metrics["auc_high"]
    assert metrics["auc"] == pytest.approx(norm.cdf(np.sqrt(2)), abs=0.03)


@pytest.mark.parametrize("recall", [0.9, 0.96, 1.0])
def test_thresholds_are_measured_with_the_head_on_validation(recall):
    trained = train_judge(judged(prompts=400), ORIGIN, JudgeSettings(recall=recall))
    head, validation = trained.head, trained.validation
    scores = head.probability(torch.from_numpy(validation.features(head.config.columns))).numpy()
    important = scores[validation.labels]
    assert (important >= head.config.threshold).mean() >= recall
    assert all((important >= larger).mean() < recall for larger in scores if larger > head.config.threshold)
    assert head.threshold_for(recall) == head.config.threshold
    assert len(head.config.thresholds) >= 10
    for row in head.config.thresholds:
        assert row.recall == pytest.approx((important >= row.threshold).mean())
        assert row.skipped == pytest.approx((scores < row.threshold).mean())


def test_figures_and_origin_are_in_the_configuration():
    origin = replace(ORIGIN, data={"sha256": "f00"})
    trained = train_judge(judged(), origin, JudgeSettings(seed=4))
    config = trained.head.config
    assert config.task == "arithmetic"
    assert config.provenance["data"] == {"sha256": "f00"}
    assert config.provenance["training"]["seed"] == 4
    assert {"torch", "scikit-learn", "hf_lossy_assist"} <= set(config.provenance["versions"])
    assert config.provenance["argv"][0] == "lossy-assist"
    assert (config.metrics["prompts"], config.metrics["tokens"]) == (120, 600)
    assert config.metrics["important_share"] == pytest.approx(0.3, abs=0.06)
    assert config.metrics["validation_prompts"] == 12
    assert not set(trained.train.prompts) & set(trained.validation.prompts)
    again, other = (train_judge(judged(), origin, JudgeSettings(seed=seed)).head for seed in (4, 5))
    assert torch.equal(again.weight, trained.head.weight)
    assert not torch.equal(other.weight, trained.head.weight)


def test_the_origin_names_no_folders_of_the_machine(monkeypatch):
    given = ["train", "judge", "--data", "/home/me/mined", "--assistant", "../draft", "--config=/home/me/run.toml"]
    monkeypatch.setattr("sys.argv", ["/home/me/.venv/bin/lossy-assist", *given])
    mining = {"settings": {"task_data": "/home/me/train.jsonl", "split": "train"}, "runs": [{"argv": given}]}
    provenance = replace(ORIGIN, data=mining).config_fields({"seed": 0})["provenance"]
    bare = ["train", "judge", "--data", "mined", "--assistant", "draft", "--config=run.toml"]
    assert provenance["argv"] == ["lossy-assist", *bare]
    assert provenance["command"] == " ".join(provenance["argv"])
    assert provenance["data"] == {
        "settings": {"task_data": "train.jsonl", "split": "train"},
        "runs": [{"argv": bare}],
    }


def test_a_saved_head_has_a_curve_and_comes_back(tmp_path):
    trained = train_judge(judged(), ORIGIN)
    trained.save(tmp_path / "deep" / "head")
    folder = tmp_path / "deep" / "head"
    assert (folder / ROC).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    head = JudgeHead.from_pretrained(folder)
    assert torch.equal(head.weight, trained.head.weight)
    assert head.config == trained.head.config


def test_a_unit_that_never_varies_is_no_trouble():
    examples = judged()
    examples.states["target_draft"][:, 2] = 7
    head = train_judge(examples, ORIGIN).head
    assert head.weight.isfinite().all()
    assert head.config.metrics["auc"] > 0.8


def test_unused_states_may_be_broken():
    examples = judged()
    examples.states["draft_previous"][:] = np.nan
    train_judge(examples, ORIGIN)
    with pytest.raises(LossyValueError, match="'draft_previous'"):
        train_judge(examples, ORIGIN, JudgeSettings(models="draft", positions="previous"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"recall": 0}, "`recall`"), ({"validation_share": 1}, "`validation_share`"), ({"models": "both2"}, "`models`")],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(LossyValueError, match=message):
        JudgeSettings(**settings)


def test_every_fold_is_judged_by_a_head_that_has_not_seen_it(tmp_path):
    examples = judged()
    folds = (examples.prompts // 7) % 4
    trained = train_judges_by_fold(examples, folds, ORIGIN, JudgeSettings(strengths=(0.01, 1.0)))
    assert sorted(trained.by_fold) == [0, 1, 2, 3]
    pairs = []
    for fold, one in trained.by_fold.items():
        seen = {*one.train.prompts, *one.validation.prompts}
        assert seen == set(examples.prompts[folds != fold])
        assert one.head.config.provenance["training"]["left_out_fold"] == fold
        left_out = examples.where(folds == fold)
        scores = one.head.probability(torch.from_numpy(left_out.states["target_draft"])).numpy()
        pairs += [p > n for p in scores[left_out.labels] for n in scores[~left_out.labels]]
    assert trained.auc == pytest.approx(np.mean(pairs))
    assert trained.final.head.config.metrics["out_of_fold_auc"] == trained.auc
    assert {*trained.final.train.prompts, *trained.final.validation.prompts} == set(examples.prompts)
    trained.save(tmp_path)
    assert torch.equal(JudgeHead.from_pretrained(tmp_path / "fold-2").weight, trained.by_fold[2].head.weight)
    assert torch.equal(JudgeHead.from_pretrained(tmp_path).weight, trained.final.head.weight)


def test_folds_of_one_class_cannot_be_measured():
    examples = judged(prompts=40)
    examples.labels[:] = examples.prompts % 2 == 0
    with pytest.raises(LossyValueError, match=r"`folds`|`data`"):
        train_judges_by_fold(examples, (examples.prompts % 2).astype(int), ORIGIN)
    with pytest.raises(LossyValueError, match=r"`folds` .* \[3\]"):
        train_judges_by_fold(judged(), np.full(600, 3), ORIGIN)


def test_classifiers_and_states_are_compared_on_one_split():
    examples, settings = judged(prompts=60), JudgeSettings(models="both", strengths=(0.001, 1.0))
    rows = list(compare(examples, settings))
    assert len(rows) == count(list(examples.states), settings) == 2 + 2 + 9
    assert [row.classifier.split(",")[0] for row in rows[:4]] == [
        "logistic regression", "logistic regression", "random forest", "MLP",
    ]  # fmt: skip
    by_states = {(row.models, row.positions): row for row in rows[4:]}
    assert set(by_states) == {(m, p) for m in ("target", "draft", "both") for p in ("previous", "draft", "both")}
    trained = train_judge(examples, ORIGIN, settings)
    assert by_states["both", "draft"].validation_auc == pytest.approx(trained.head.config.metrics["auc"], abs=1e-3)
    assert max(row.validation_auc for row in rows[:2]) == by_states["both", "draft"].validation_auc
    # The states that know more are ranked higher, and forests learn their training set by heart.
    assert by_states["target", "draft"].validation_auc > by_states["target", "previous"].validation_auc
    assert rows[2].train_auc > rows[1].train_auc


def test_states_of_the_targets_token_are_compared_where_they_were_mined():
    found = variants([f"{model}_{token}" for model in ("target", "draft") for token in ("previous", "draft", "target")])
    assert len(found) == 15
    assert found[-1][-1] == ("target_draft", "target_target", "draft_draft", "draft_target")
