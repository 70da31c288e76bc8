"""Thresholds, rates and intervals, against what they are by definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.training.examples import Examples
from hf_lossy_assist.training.head_training import (
    auc_interval,
    both_classes,
    folds_of,
    largest_threshold,
    rates,
    recall_and_skipped,
)

TOKENS = st.lists(st.tuples(st.booleans(), st.integers(0, 20).map(lambda n: n / 20)), min_size=1, max_size=40)


def examples_of(labels, prompts=None) -> Examples:
    return Examples({}, np.asarray(labels), np.zeros(len(labels), dtype=int) if prompts is None else prompts)


def interval_of(labels, scores, prompts, **options) -> tuple[float, float]:
    return auc_interval(examples_of(labels, prompts), scores, **options)


@settings(max_examples=200)
@given(TOKENS.filter(lambda tokens: any(label for label, _ in tokens)), st.integers(1, 20).map(lambda n: n / 20))
def test_no_larger_threshold_has_the_recall(tokens, recall):
    labels, probabilities = (np.array(column) for column in zip(*tokens, strict=True))
    threshold = largest_threshold(examples_of(labels), probabilities, recall)

    def found(candidate):
        important = [p for label, p in tokens if label]
        return sum(p >= candidate for p in important) / len(important)

    assert found(threshold) >= recall - 1e-12
    larger = [p for _, p in tokens if p > threshold]
    assert all(found(candidate) < recall for candidate in larger)


@settings(max_examples=100)
@given(TOKENS.filter(lambda tokens: any(label for label, _ in tokens)), st.integers(0, 20).map(lambda n: n / 20))
def test_shares_are_those_of_tokens_below_the_threshold(tokens, threshold):
    labels, probabilities = (np.array(column) for column in zip(*tokens, strict=True))
    recall, skipped = recall_and_skipped(examples_of(labels), probabilities, threshold)
    accepted = [(label, p < threshold) for label, p in tokens]
    assert skipped == pytest.approx(sum(skip for _, skip in accepted) / len(accepted))
    assert recall == pytest.approx(1 - sum(skip for label, skip in accepted if label) / labels.sum())


def test_rates_are_strict_about_the_threshold():
    labels = np.array([True, True, False, False])
    assert rates(examples_of(labels), np.array([0.5, 0.6, 0.5, 0.9]), 0.5) == (0.5, 0.5)


def test_the_interval_is_that_of_areas_over_drawn_prompts():
    rng = np.random.default_rng(3)
    prompts = rng.integers(12, size=80)
    labels, scores = rng.random(80) < 0.4, rng.integers(10, size=80) / 10
    areas = []
    for _ in range(300):
        drawn = np.concatenate([np.flatnonzero(prompts == i) for i in rng.integers(12, size=12)])
        areas.append(roc_auc_score(labels[drawn], scores[drawn]))
    found = interval_of(labels, scores, prompts, draws=2000)
    assert found == pytest.approx(tuple(np.quantile(areas, [0.025, 0.975])), abs=0.03)


def test_the_interval_covers_the_area_nineteen_times_in_twenty():
    """For two normal distributions a distance of sqrt(2) apart, the area is Phi(1) = 0.8413."""
    rng = np.random.default_rng(0)
    covered = []
    for _ in range(60):
        labels = rng.random(400) < 0.3
        scores = rng.normal(size=400) + np.sqrt(2) * labels
        low, high = interval_of(labels, scores, np.arange(400) // 4, draws=200)
        covered.append(low <= 0.8413 <= high)
    # Binomial(60, 0.95) is below 50 with a probability of 2e-4.
    assert sum(covered) >= 50


def test_the_interval_knows_that_tokens_of_a_prompt_go_together():
    """100 copies of each token are no more evidence than one."""
    rng = np.random.default_rng(1)
    labels = rng.random(40) < 0.4
    scores = rng.normal(size=40) + labels
    low, high = interval_of(labels, scores, np.arange(40))
    many = [np.repeat(x, 100) for x in (labels, scores, np.arange(40))]
    assert interval_of(*many) == pytest.approx((low, high))


def test_an_interval_without_evidence_is_everything():
    labels, prompts = np.array([True, False]), np.array([0, 1])
    assert interval_of(labels, np.array([0.9, 0.1]), prompts, draws=1, seed=0) in {(0.0, 1.0), (1.0, 1.0)}


@pytest.mark.parametrize("seed", range(5))
def test_no_prompt_is_on_both_sides(seed):
    rng = np.random.default_rng(seed)
    prompts = np.repeat(rng.permutation(1000)[:50], rng.integers(1, 9, size=50))
    examples = examples_of(rng.random(len(prompts)) < 0.2, prompts)
    folds = folds_of(examples, seed=seed)
    assert sorted(np.concatenate([judged for _, judged in folds])) == list(range(len(prompts)))
    for others, judged in folds:
        assert not set(prompts[others]) & set(prompts[judged])
        assert len(set(prompts[judged])) >= 5
        assert both_classes(examples.labels[others])
    again, other = (folds_of(examples, seed=each) for each in (seed, seed + 1))
    assert all((a[1] == b[1]).all() for a, b in zip(folds, again, strict=True))
    assert any(len(a[1]) != len(b[1]) or (a[1] != b[1]).any() for a, b in zip(folds, other, strict=True))


PROMPTS = np.repeat(np.arange(30), 2)


@pytest.mark.parametrize(("labels", "prompts", "said"), [
    ((PROMPTS == 3) & (np.arange(60) % 2 == 0), PROMPTS, "of 30 prompts 30 unimportant and 1 important tokens"),
    (PROMPTS >= 0, PROMPTS, "of 30 prompts 0 unimportant and 30 important"),
    (PROMPTS < 0, PROMPTS, "of 30 prompts 30 unimportant and 0 important"),
    (PROMPTS < 9, 0 * PROMPTS, "of 1 prompts"),
    (PROMPTS[:0] > 0, PROMPTS[:0], "of 0 prompts"),
])  # fmt: skip
def test_prompts_that_can_not_be_validated(labels, prompts, said):
    with pytest.raises(LossyValueError, match=said):
        folds_of(examples_of(labels, prompts))
