"""Labels by likelihood beside labels by answers."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from benchmarks import mined_labels, self_labels
from hf_lossy_assist.mining.self_labels import likelihood_changes
from tests.benchmarks.running import run
from tests.mining.parts import tiny_parts


def test_only_mismatches_in_the_target_s_own_text_count():
    tokens = [(0, 1, 50, True), (0, 3, 51, False), (0, 4, 52, True), (1, 0, 53, True)]
    names = ("prompt_id", "index", "draft_token", "important")
    rows = [dict(zip(names, row, strict=True)) for row in tokens]
    prompts = [
        {"prompt_id": 0, "prompt_tokens": [9], "first_response": [1, 2, 3, 4, 5], "last_response": [1, 2, 3, 51, 6]},
        {"prompt_id": 1, "prompt_tokens": [8], "first_response": [1, 2], "last_response": [1, 2]},
        {"prompt_id": 2, "prompt_tokens": [7], "first_response": None, "last_response": None},
    ]
    mined = SimpleNamespace(tokens=SimpleNamespace(select_columns=lambda names: rows), prompts=prompts)
    assert list(self_labels.in_own_text(mined)) == [
        ((9,), (1, 2, 3, 4, 5), {1: (50, True), 3: (51, False)}),
        ((8,), (1, 2), {0: (53, True)}),
    ]


def test_a_row_counted_by_hand():
    important = np.array([True, False, False, True])
    changes = np.array([-0.3, -0.4, -0.1, np.nan])
    [row, bolder] = self_labels.rows_of(8, important, changes, [0.2, 1])
    # Of four pairs of an important and another mismatch, three are in the right order.
    assert row == ["8", "0.750", "0.2", "75.0", "75.0", "0.0"]
    assert bolder == ["8", "0.750", "1", "25.0", "75.0", "25.0"]


def test_the_study_reads_what_was_mined(monkeypatch, tmp_path):
    parts = tiny_parts(noise=0.2)
    mined = SimpleNamespace(manifest={"kind": "judge", "settings": {"dtype": {"target": "float32"}}})
    text = (3, 4, 5), (6, 7, 8, 9)
    monkeypatch.setattr(mined_labels, "load_mined", lambda folder: mined)
    monkeypatch.setattr(self_labels, "in_own_text", lambda mined: [(*text, {0: (10, True), 2: (11, False)})])
    monkeypatch.setattr(self_labels.ModelOptions, "load", lambda self: SimpleNamespace(target=parts.target))
    lost = [-x for x in likelihood_changes(parts.target, *text, [0, 2], (10, 0, 11, 0), 3)]
    output = run(self_labels.app, "--data", tmp_path, "--horizons", "3", "--most-lost", sum(lost) / 2).output
    assert "2 mismatches of 1 prompts, 50.0 % change the answer" in output
    assert f"{float(lost[0] > lost[1]):.3f}" in output, "the AUC of two mismatches"
    mined.manifest["kind"] = "ratio"
    assert "`--data` has to be a folder with labels" in run(self_labels.app, "--data", tmp_path, status=2).output
