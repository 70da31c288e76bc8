"""Measuring accuracy, and what the model cards say of it."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from huggingface_hub import ModelCard

from hf_lossy_assist import pairs
from hf_lossy_assist.pairs import cards, evaluation
from hf_lossy_assist.pairs.evaluation import evaluate, respond
from hf_lossy_assist.pairs.recipe import RECIPES
from hf_lossy_assist.tasks import Arithmetic
from tests.tiny_pair import TINY

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
    "recipe": asdict(RECIPES["draft"]),
    "versions": {"torch": "2.13.0"},
    "command": "lossy-assist evaluate-pair --role draft --problems 1000",
}


def test_right_wrong_and_missing_answers_are_counted(monkeypatch):
    task = Arithmetic()
    examples = task.examples("test", 10)
    wrong, silent = examples[2].prompt, examples[7].prompt

    def scripted(model, tokenizer, batch):
        special = {wrong: "The answer is 100000.", silent: "I don't know."}
        return [special.get(example.prompt, example.solution) for example in batch]

    monkeypatch.setattr(evaluation, "respond", scripted)
    done = []
    result = evaluate(None, None, task, 10, batch_size=4, on_batch=done.append)
    assert (result.problems, result.correct, result.unanswered) == (10, 8, 1)
    assert result.accuracy == pytest.approx(0.8)
    assert done == [4, 8, 10]


def test_a_batch_answers_as_one_by_one(tiny_pair_folder, monkeypatch):
    monkeypatch.setattr(evaluation, "MAX_NEW_TOKENS", 12)
    pair = pairs.load("arithmetic", folder=tiny_pair_folder)
    examples = pair.task.examples("test", 5)
    lengths = {len(pair.tokenizer(example.prompt)["input_ids"]) for example in examples}
    assert len(lengths) > 1  # otherwise nothing is padded
    together = respond(pair.target, pair.tokenizer, examples)
    alone = [respond(pair.target, pair.tokenizer, [example])[0] for example in examples]
    assert together == alone
    assert not any("Question" in response for response in together)


def test_longest_solutions_fit():
    from hf_lossy_assist.pairs.recipe import build_tokenizer

    tokenizer = build_tokenizer(1000)
    solutions = [example.solution for example in Arithmetic().examples("test", 500)]
    longest = max(map(len, tokenizer(solutions, add_special_tokens=False)["input_ids"]))
    assert longest < evaluation.MAX_NEW_TOKENS


def test_a_card_states_what_was_measured_and_how():
    card = ModelCard(cards.render_card(FIGURES))
    assert card.data.license == "apache-2.0"
    assert card.data.library_name == "transformers"
    assert {"hf_lossy_assist", "draft"} <= set(card.data.tags)
    assert card.data.eval_results[0].metric_value == pytest.approx(0.4321)
    assert "**43.2 %** (432 of 1,000 test problems" in card.text
    assert "254,000" in card.text
    assert FIGURES["command"] in card.text
    assert f"{RECIPES['draft'].steps} steps of 48 problems" in card.text
    assert "$" not in card.text


def test_measuring_and_writing(tiny_pair_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "MAX_NEW_TOKENS", 4)
    assert cards.recorded_recipe(tmp_path, "draft") == RECIPES["draft"]
    figures = cards.measure(tiny_pair_folder / "draft", "draft", TINY, problems=3)
    assert (figures["problems"], figures["correct"], figures["unanswered"]) == (3, 0, 3)
    cards.write(tmp_path, figures)
    assert cards.recorded_recipe(tmp_path, "draft") == TINY
    assert "**0.0 %** (0 of 3 test problems" in (tmp_path / "README.md").read_text()
