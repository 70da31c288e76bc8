"""Tables of what else could judge."""

from __future__ import annotations

import pytest

from hf_lossy_assist.training.judge_training import JudgeSettings, compare, count, train_judge, variants
from tests.training.synthetic import ORIGIN, judged


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
