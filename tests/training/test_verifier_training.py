"""Verifier heads, on ratios whose best classifier is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.heads import VerifierHead
from hf_lossy_assist.heads.repository import ROC
from hf_lossy_assist.training.validation import deal, fit
from hf_lossy_assist.training.verifier_training import AdamLayer, VerifierSettings, train_verifier
from tests.training.synthetic import DRAFT, KINDS, ORIGIN, TARGET, ratios

QUICK = AdamLayer(learning_rate=0.05, patience=3)


@pytest.fixture(scope="module")
def trained():
    return train_verifier(ratios(), ORIGIN, VerifierSettings(ratio=1.2, layer=QUICK))


def test_a_layer_is_the_regression_without_regularisation():
    """Logistic regression is convex: Adam has to arrive where scikit-learn does."""
    examples = ratios(prompts=400).labelled(1.2).only(["previous"])
    held_out = examples.prompts % 10 == 0
    train, rest = examples.where(~held_out), examples.where(held_out)
    found = fit(AdamLayer(learning_rate=0.02, batch=2000, epochs=1000), ["previous"], train)
    oracle = fit(LogisticRegression(C=np.inf, tol=1e-10, max_iter=5000), ["previous"], train)
    expected, own = (each.predict_proba(rest.states["previous"])[:, 1] for each in (oracle, found))
    np.testing.assert_allclose(own, expected, atol=2e-3)


def test_descent_stops_early_and_goes_back():
    rng = np.random.default_rng(0)
    data = ratios(prompts=30)
    noise = replace(data, p=rng.permutation(data.p)).labelled(1.0)
    patient = AdamLayer(learning_rate=0.1, batch=8, patience=2, max_epochs=200)
    layer = fit(patient, ["token"], noise)[-1]
    assert layer.epochs_ < 100
    again = fit(patient.set_params(max_epochs=max(layer.epochs_, 1)), ["token"], noise)[-1]
    np.testing.assert_array_equal(layer.coef_, again.coef_)


def test_small_steps_see_more_than_one_epoch():
    """With the default, a fit to few prompts does not overshoot at once."""
    few = ratios(prompts=20, tokens=40).labelled(1.2)
    layer = fit(AdamLayer(), ["token"], few)[-1]
    assert layer.epochs_ > 10


def test_the_better_position_is_the_default(trained):
    config = trained.head.config
    assert config.position == "token"
    assert config.metrics["auc_token"] == config.metrics["auc"] > config.metrics["auc_previous"]
    assert 0 < config.metrics["auc_gain_low"] < config.metrics["auc_gain"] < config.metrics["auc_gain_high"]
    assert (config.target, config.draft, config.ratio, config.threshold) == (TARGET, DRAFT, 1.2, 0.5)
    other = train_verifier(ratios(), ORIGIN, VerifierSettings(ratio=1.2, position="previous", layer=QUICK))
    assert other.head.config.position == "previous"
    assert other.head.config.metrics["auc"] == config.metrics["auc_previous"]
    assert "auc_token" not in other.head.config.metrics


def test_figures_are_out_of_fold(trained):
    examples = ratios().labelled(1.2)
    (curve,) = [curve for curve in trained.curves if curve.name == "λ = 1.2"]
    labels, folds = curve.examples.labels, deal(examples)
    for fold in np.unique(folds):
        inside = folds == fold
        scores = fit(QUICK, ["token"], examples.where(~inside)).predict_proba(examples.states["token"][inside])[:, 1]
        np.testing.assert_allclose(curve.scores[inside], scores, atol=1e-6)
    metrics = trained.head.config.metrics
    assert metrics["auc"] == pytest.approx(roc_auc_score(labels, curve.scores))
    assert metrics["auc_low"] < metrics["auc"] < metrics["auc_high"]
    assert metrics["tpr"] == pytest.approx((curve.scores[labels] > 0.5).mean())
    assert metrics["fpr"] == pytest.approx((curve.scores[~labels] > 0.5).mean())
    assert metrics["acceptable_share"] == pytest.approx(examples.labels.mean())
    assert {f"auc_after_{kind}" for kind in KINDS} <= set(metrics)
    assert len([name for name in metrics if name.startswith("auc_from_")]) == 3
    rows = trained.head.config.thresholds
    assert len(rows) >= 10
    assert [row.threshold for row in rows] == sorted(row.threshold for row in rows)
    for row in rows:
        assert row.tpr == pytest.approx((curve.scores[labels] > row.threshold).mean())
        assert row.fpr == pytest.approx((curve.scores[~labels] > row.threshold).mean())


@pytest.mark.parametrize("recall", [0.5, 1.0])
def test_a_threshold_by_the_recall_that_it_needs(recall):
    settings = VerifierSettings(ratio=1.2, position="token", recall=recall, layer=QUICK)
    trained = train_verifier(ratios(prompts=40), ORIGIN, settings, curve_ratios=())
    (curve,), config = trained.curves, trained.head.config
    acceptable = curve.scores[curve.examples.labels]
    assert config.metrics["tpr"] == (acceptable > config.threshold).mean() >= recall
    assert all((acceptable > larger).mean() < recall for larger in acceptable if larger > config.threshold)


def test_a_lambda_below_one(tmp_path):
    """Fewer tokens are acceptable: those that the target likes more than the draft does, and by so much."""
    data, ratio = ratios(prompts=60), 0.6
    labels = data.labelled(ratio).labels
    assert (labels == (data.q / data.p <= ratio)).all()
    assert 0 < labels.sum() < data.labelled(1.0).labels.sum()
    settings = VerifierSettings(ratio=ratio, position="token", layer=QUICK)
    trained = train_verifier(data, ORIGIN, settings, curve_ratios=())
    trained.save(tmp_path)
    head = VerifierHead.from_pretrained(tmp_path)
    assert head.config.ratio == ratio
    assert head.config.metrics["acceptable_share"] == labels.mean()
    assert head.config.metrics["auc"] > 0.9


def test_one_curve_for_each_lambda(trained, tmp_path):
    assert [curve.name for curve in trained.curves] == ["λ = 1", "λ = 1.2", "λ = 1.5"]
    assert {"auc_lambda_1", "auc_lambda_1.2", "auc_lambda_1.5"} <= set(trained.head.config.metrics)
    shares = [curve.examples.labels.mean() for curve in trained.curves]
    assert shares == sorted(shares)
    trained.save(tmp_path / "head")
    assert (tmp_path / "head" / ROC).stat().st_size > 1000
    head = VerifierHead.from_pretrained(tmp_path / "head")
    assert head.config == trained.head.config
    assert torch.equal(head.weight, trained.head.weight)


def test_one_class_is_no_data():
    settings = VerifierSettings(ratio=1.0, position="token", layer=QUICK)
    data = ratios(prompts=40)
    trained = train_verifier(data, ORIGIN, settings, curve_ratios=(1.0, 1000.0))  # which accepts everything
    assert [curve.name for curve in trained.curves] == ["λ = 1"]
    with pytest.raises(LossyValueError, match="all of its 200 tokens are acceptable"):
        train_verifier(replace(data, p=data.q), ORIGIN)
    with pytest.raises(LossyValueError, match="all of its 200 tokens are unacceptable"):
        train_verifier(replace(data, p=0 * data.q), ORIGIN)


@pytest.mark.parametrize("seed", range(3))
def test_figures_that_need_more_prompts_are_left_out(seed):
    """Unacceptable tokens are of six prompts at λ = 1, of two at λ = 1.2 and 1.5, and an early stop needs two."""
    data = ratios(prompts=40)
    odds = np.where(data.prompts < 2, 2.0, np.where(data.prompts < 6, 1.1, 1.0)) * (np.arange(len(data.q)) % 2)
    settings = VerifierSettings(position="token", layer=QUICK, seed=seed)
    trained = train_verifier(replace(data, p=data.q / np.maximum(odds, 1.0)), ORIGIN, settings)
    assert [curve.name for curve in trained.curves] == ["λ = 1"]
    assert "auc_from_4_prompts" not in trained.head.config.metrics


def test_states_that_are_not_finite():
    data = ratios(prompts=40)
    data.states["previous"][7] = np.nan
    with pytest.raises(LossyValueError, match="'previous' has NaN or infinite values in 1 of 200"):
        train_verifier(data, ORIGIN)
    train_verifier(data, ORIGIN, VerifierSettings(position="token", layer=QUICK), curve_ratios=())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ratio": 0.0}, "`ratio`"),
        ({"ratio": -1.0}, "`ratio`"),
        ({"ratio": np.nan}, "`ratio`"),
        ({"ratio": np.inf}, "`ratio`"),
        ({"position": "draft"}, "`position`"),
        ({"recall": 0.0}, "`recall`"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(LossyValueError, match=message):
        VerifierSettings(**settings)
