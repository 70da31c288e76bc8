"""Summaries and translations against references."""

from __future__ import annotations

import json

import pytest

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.tasks import load

ROWS = [
    {"document": "It rained all day, and all night.", "summary": "rain all day"},
    {"article": "A cat sat on a mat.", "highlights": "cat on a mat"},
    {"category": "translation", "turns": ["Translate: Hallo"], "reference": ["Hello", "Hi"]},
]


@pytest.fixture
def data(tmp_path) -> str:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return str(path)


def test_texts_are_asked_for_and_scored_against_their_references(data):
    task = load("summaries", data)
    rain, cat, hello = task.examples("test", 9)
    assert rain.prompt.startswith("Summarize the following text in one sentence.\n\nIt rained")
    assert task.user_turn(hello) == "Translate: Hallo"
    assert task.score(cat, " cat on a mat ", "") == 1
    assert task.score(cat, "cat on a mat\n\nAnd what else?", "") == 1
    assert task.score(rain, "rain", "") == pytest.approx(0.5)
    assert task.score(hello, "Hi", "") == 1, "the nearest of several"
    assert task.correct(hello, "Hi")
    assert not task.correct(hello, "Hi there")


def test_worked_examples_and_categories(data):
    task = load("summaries", data, shots=1, instruction="Sum up:")
    cat, _ = task.examples("test", 9)
    assert cat.prompt.startswith("Sum up:\n\nIt rained all day, and all night.\nAnswer: rain all day\n\nSum up:")
    contents = [turn["content"] for turn in task.turns(cat)]
    assert contents == [
        "Sum up:\n\nIt rained all day, and all night.", "rain all day", "Sum up:\n\nA cat sat on a mat."
    ]  # fmt: skip
    assert len(load("summaries", data, category="translation", metric="chrf").examples("test", 9)) == 1


def test_malformed_rows_and_metrics_are_named(data, tmp_path):
    with pytest.raises(LossyValueError, match="`metric` has to be one of"):
        load("summaries", data, metric="meteor")
    for row in ({"document": "x"}, {"summary": "x"}, {"document": "x", "summary": [["y"]]}):
        path = tmp_path / "bad.jsonl"
        path.write_text(json.dumps(row))
        with pytest.raises(LossyValueError, match="row 1 of `data` needs a text"):
            load("summaries", str(path))
