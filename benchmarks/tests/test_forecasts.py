"""Answers lost and won, predicted for kept answers: against answers that are drawn by the model."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from benchmarks import forecasts
from benchmarks.rule_curves import Curves
from benchmarks.tests.running import run
from hf_lossy_assist.evaluation.advice.outcomes import Labelled
from hf_lossy_assist.training.examples import Examples

SHARE, AGAIN, KEPT = 0.12, 0.2, 4


def labels_of(problems: int, share: float) -> Labelled:
    """Return labels at which ``min_p`` keeps the draft's token, and of which a ``share`` is important everywhere."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(problems), 10)
    solved = np.arange(problems) % 2 == 0
    important = rng.random(len(owner)) < share
    right = np.where(important, ~solved[owner] & (rng.random(len(owner)) < AGAIN), solved[owner])
    p = torch.tensor([0.5, 0.4, 0.1]).log().expand(len(owner), -1)
    return Labelled(
        owner, important, right.astype(float), np.ones(len(owner)), solved, p, p, torch.ones(len(owner)).long()
    )


@pytest.fixture
def folder(tmp_path):
    """Return a folder in which a rule keeps four tokens of each answer, drawn independently."""
    rng = np.random.default_rng(1)
    before = rng.random(600) < 0.6
    after = before.copy()
    for _ in range(KEPT):
        changed = rng.random(600) < SHARE
        after = np.where(changed, ~after & (rng.random(600) < AGAIN), after)
    rows = []
    for mode, right, lossy in (("lossless", before, 0), ("min_p", after, KEPT), ("dropmatch", after, KEPT)):
        for i, each in enumerate(right.tolist()):
            rows.append({
                "mode": mode, "id": i, "score": float(each), "tokens": 50, "rounds": 10, "accepted": 40,
                "seconds": None, "text": "x", "lossy": lossy,
            })  # fmt: skip
    config = {"lossy_config": {}, "num_assistant_tokens": 5, "temperature": None, "heads": {}}
    modes = {name: {"lossy_mode": name, **config} for name in ("lossless", "min_p", "dropmatch")} | {"plain": {}}
    manifest = {"modes": modes, "reference": "lossless", "problems": list(range(600)), "runs": [], "batch_size": 1}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "results.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return tmp_path


def test_counts_lie_within_the_intervals_of_right_labels_and_outside_those_of_wrong_ones(folder):
    """A lost answer's probability is 0.37; labels with a third of the changes say 0.15."""
    ((rule, n, counts),) = forecasts.forecasts(labels_of(400, SHARE), folder)  # without DropMatch
    assert (rule, n) == ("min_p", 600)
    for seen, predicted, low, high in counts.values():
        assert low <= seen <= high
        assert high - low < predicted
    ((_, _, counts),) = forecasts.forecasts(labels_of(400, SHARE / 3), folder)
    assert counts["lost"][0] > counts["lost"][3]


def test_the_table_counts_what_lies_within(folder, monkeypatch):
    monkeypatch.setattr(forecasts.Labelled, "read", lambda *arguments: labels_of(400, SHARE))
    printed = run(forecasts.app, "labels", folder, "--pair", "arithmetic", "--dtype", "float32").output
    assert f"| {folder.name} | `min_p` | 600 | " in printed
    ends = [f"1 of 1 counts of answers {name} lie within their intervals" for name in ("lost", "won")]
    assert printed.splitlines()[-2:] == ends


@pytest.mark.parametrize(
    ("rule", "settings"), [("judge", {"threshold": 0.3}), ("strict_words", {"threshold": 0.2, "pair": "arithmetic"})]
)
def test_judges_decide_by_rows(folder, rule, settings):
    """The answers are those of a rule that keeps every label, and of whose labels a share is important."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["modes"]["min_p"] |= {"lossy_mode": rule, "lossy_config": settings, "heads": {"judge": 1}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    labels = labels_of(400, SHARE)
    one = np.ones(len(labels.x))
    examples = Examples({}, labels.important, labels.problems)
    assert not list(forecasts.forecasts(labels, folder))
    for order, seen in (
        ({"judge": -0.2 * one, "fsd": -0.1 * one, "no digits or operators": 0 * one}, True),
        ({"judge": -0.4 * one, "fsd": -0.3 * one, "no digits or operators": 0 * one}, False),
        ({"judge": -0.4 * one, "fsd": -0.1 * one, "no digits or operators": -one}, False),
    ):
        ((_, _, counts),) = forecasts.forecasts(labels, folder, Curves(examples, order, {}))
        lost, predicted, low, high = counts["lost"]
        assert (low <= lost <= high and predicted > 100) == seen
