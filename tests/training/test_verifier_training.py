"""Verifier heads, on ratios whose best classifier is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.heads import VerifierHead
from hf_lossy_assist.heads.repository import ROC
from hf_lossy_assist.training.head_training import JudgeSettings, VerifierSettings, folds_of, train_verifier
from tests.training.synthetic import DRAFT, ORIGIN, TARGET, by_hand, ratios

QUICK = (0.01, 1.0)


def of_tokens(**more):
    """Return ratios with the better of the two states alone."""
    data = ratios(**more)
    return replace(data, states={"token": data.states["token"]})


@pytest.fixture(scope="module")
def trained():
    return train_verifier(ratios(), ORIGIN, VerifierSettings(ratio=1.2, strengths=QUICK))


def test_the_better_position_is_the_default(trained):
    config = trained.head.config
    assert config.position == "token"
    assert config.metrics["auc_token"] == config.metrics["auc"] > config.metrics["auc_previous"]
    assert (config.target, config.draft, config.ratio, config.threshold) == (TARGET, DRAFT, 1.2, 0.5)


def test_figures_are_out_of_fold(trained):
    examples = ratios().labelled(1.2)
    labels, found, strength = examples.labels, trained.probabilities, trained.head.config.metrics["C"]
    for others, inside in folds_of(examples):
        scores = by_hand(examples, ["token"], strength, others)[inside]
        np.testing.assert_allclose(found[inside], scores, atol=1e-4)
    metrics = trained.head.config.metrics
    assert metrics["auc"] == pytest.approx(roc_auc_score(labels, found))
    assert metrics["auc_low"] < metrics["auc"] < metrics["auc_high"]
    assert metrics["tpr"] == pytest.approx((found[labels] > 0.5).mean())
    assert metrics["fpr"] == pytest.approx((found[~labels] > 0.5).mean())
    assert metrics["acceptable_share"] == pytest.approx(examples.labels.mean())
    rows = trained.head.config.thresholds
    assert len(rows) >= 10
    assert [row.threshold for row in rows] == sorted(row.threshold for row in rows)
    for row in rows:
        assert row.tpr == pytest.approx((found[labels] > row.threshold).mean())
        assert row.fpr == pytest.approx((found[~labels] > row.threshold).mean())


@pytest.mark.parametrize("recall", [0.5, 1.0])
def test_a_threshold_by_the_recall_that_it_needs(recall):
    settings = VerifierSettings(ratio=1.2, recall=recall, strengths=QUICK)
    trained = train_verifier(of_tokens(prompts=40), ORIGIN, settings)
    config, acceptable = trained.head.config, trained.probabilities[trained.examples.labels]
    assert config.metrics["tpr"] == (acceptable > config.threshold).mean() >= recall
    assert all((acceptable > larger).mean() < recall for larger in acceptable if larger > config.threshold)


def test_a_lambda_below_one(tmp_path):
    """Fewer tokens are acceptable: those that the target likes more than the draft does, and by so much."""
    data, ratio = of_tokens(prompts=60), 0.6
    labels = data.labelled(ratio).labels
    assert (labels == (data.q / data.p <= ratio)).all()
    assert 0 < labels.sum() < data.labelled(1.0).labels.sum()
    settings = VerifierSettings(ratio=ratio, strengths=QUICK)
    trained = train_verifier(data, ORIGIN, settings)
    trained.save(str(folder := tmp_path / "deep" / "head"))
    assert (folder / ROC).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    head = VerifierHead.from_pretrained(folder)
    assert head.config == trained.head.config
    assert torch.equal(head.weight, trained.head.weight)
    assert head.config.ratio == ratio
    assert head.config.metrics["acceptable_share"] == labels.mean()
    assert head.config.metrics["auc"] > 0.9


def test_states_have_to_be_finite():
    data = ratios(prompts=40)
    data.states["previous"][7] = np.nan
    with pytest.raises(LossyValueError, match="'previous' has NaN or infinite values in 1 of 200"):
        train_verifier(data, ORIGIN)


@pytest.mark.parametrize(("kind", "settings"), [
    *((VerifierSettings, {"ratio": ratio}) for ratio in (0.0, -1.0, np.nan, np.inf)),
    (VerifierSettings, {"recall": 0.0}), (JudgeSettings, {"recall": 0}),
    (JudgeSettings, {"positions": "next"}), (JudgeSettings, {"recall": "0.9"}),
])  # fmt: skip
def test_settings_out_of_range(kind, settings):
    (name,) = settings
    with pytest.raises(LossyValueError, match=f"`{name}`"):
        kind(**settings)
