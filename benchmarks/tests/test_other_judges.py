"""Other classifiers and states beside a judge head."""

from __future__ import annotations

import pytest

from benchmarks import other_judges
from benchmarks.tests.running import run
from tests.training.synthetic import judged, write_judged


def test_classifiers_and_states_are_compared_on_the_same_folds(tmp_path, monkeypatch):
    monkeypatch.setattr(other_judges, "STRENGTHS", (0.001, 1.0))
    data = write_judged(tmp_path / "mined", judged(prompts=60))
    output = run(other_judges.app, "--data", data).output
    rows = [line.rsplit("  ") for line in output.splitlines() if "…" in line]
    assert len(rows) == 2 + 2 + 9
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    found = {(row[1], row[2]): float(row[4].split()[0]) for row in cells[4:]}
    # The head reads the target's state after the drafted token; states that know more are ranked higher.
    assert found["draft", "target"] == pytest.approx(0, abs=1e-4)
    assert max(found["previous", "draft"], found["previous", "target"]) < -0.1
    assert "random forest" in output
    assert "MLP" in output


def test_components_stand_for_the_states():
    examples = judged(prompts=60)
    features, weights = examples.features(["target_draft"]), examples.weights
    tried = other_judges.OnComponents(6, 1.0).fit(features, examples.labels, weights)
    (whole,) = other_judges.regressions([1.0])
    scores = whole.fit(tried.components_.transform(features), examples.labels, weights).predict_proba
    assert tried.predict_proba(features)[:, 1] == pytest.approx(
        scores(tried.components_.transform(features))[:, 1], abs=1e-6
    )
