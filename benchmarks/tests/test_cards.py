"""The model cards state what was measured."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from huggingface_hub import ModelCard

from benchmarks.bundled_pair import cards
from benchmarks.bundled_pair.recipe import RECIPES, build_tokenizer
from hf_lossy_assist.tasks import Arithmetic
from tests.tiny_pair import TINY

DRAFT = RECIPES["arithmetic"].models["draft"]

FIGURES = {
    "pair": "arithmetic",
    "role": "draft",
    "accuracy": 0.4321,
    "correct": 432,
    "problems": 1000,
    "unanswered": 3,
    "split": "test",
    "parameters": 254_000,
    "vocabulary": 796,
    "recipe": asdict(DRAFT),
    "versions": {"torch": "2.13.0"},
    "command": "python -m benchmarks.train_pair evaluate-pair --role draft --problems 1000",
}


def test_longest_solutions_fit():
    tokenizer = build_tokenizer(1000)
    solutions = [example.solution for example in Arithmetic().examples("test", 500)]
    longest = max(map(len, tokenizer(solutions, add_special_tokens=False)["input_ids"]))
    assert longest < Arithmetic.max_new_tokens


def test_a_card_states_what_was_measured_and_how():
    card = ModelCard(cards.render_card(FIGURES))
    assert card.data.license == "apache-2.0"
    assert card.data.library_name == "transformers"
    assert {"hf_lossy_assist", "draft"} <= set(card.data.tags)
    assert card.data.eval_results[0].metric_value == pytest.approx(0.4321)
    assert "**43.2 %** (432 of 1,000 test problems" in card.text
    assert "254,000" in card.text
    assert FIGURES["command"] in card.text
    assert f"{DRAFT.steps} steps of 48 problems" in card.text
    assert "$" not in card.text


def test_measuring_and_writing(tiny_pair_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(Arithmetic, "max_new_tokens", 4)
    assert cards.recorded_recipe(tmp_path, "draft") == DRAFT
    figures = cards.measure(tiny_pair_folder / "draft", "draft", TINY, problems=3)
    assert (figures["problems"], figures["correct"], figures["unanswered"]) == (3, 0, 3)
    cards.write(tmp_path, figures)
    assert cards.recorded_recipe(tmp_path, "draft") == TINY
    assert "**0.0 %** (0 of 3 test problems" in (tmp_path / "README.md").read_text()
