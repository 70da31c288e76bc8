"""Questions with lettered choices."""

from __future__ import annotations

import json

import pytest

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.tasks import load

ROWS = [
    {"question": "What is even?", "choices": ["1", "2", "3"], "answer": 1, "subject": "numbers"},
    {"question": "What is red?", "choices": ["blood", "grass"], "answer": "a", "subject": "colours"},
    {"question": "What is prime?", "choices": ["8", "9", "11", "12"], "answer": "C", "subject": "numbers"},
]


@pytest.fixture
def write(tmp_path):
    def write(*rows) -> str:
        path = tmp_path / "questions.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return write


def test_questions_and_their_letters(write):
    examples = load("choices", write(*ROWS)).examples("test", 9)
    assert [example.answer for example in examples] == ["B", "A", "C"]
    assert examples[1].prompt == "Question: What is red?\nA. blood\nB. grass\nAnswer:"
    assert [e.answer for e in load("choices", write(*ROWS), category="numbers").examples("test", 9)] == ["B", "C"]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("It is 2. The answer is (B).", "B"),
        ("Perhaps the answer is A. No: the answer is **C**.", "C"),
        ("Answer: d", "D"),
        (" B", "B"),
        ("(C) because it is", "C"),
        ("B. 2", "B"),
        ("A\nQuestion: What is next?\nAnswer: B", "A"),
        ("I can't tell.", None),
        ("I'd say so", None),
        ("", None),
    ],
)
def test_letters_are_found(write, text, answer):
    assert load("choices", write(*ROWS)).extract_answer(text) == answer


def test_worked_questions_come_first(write):
    task = load("choices", write(*ROWS), shots="1")
    example = task.examples("test", 9)[0]
    assert len(task.examples("test", 9)) == 2
    assert example.prompt.startswith("Question: What is even?\nA. 1\nB. 2\nC. 3\nAnswer: B\n\nQuestion: What is red?")
    asked, answered, last = task.turns(example)
    assert [turn["role"] for turn in (asked, answered, last)] == ["user", "assistant", "user"]
    assert answered["content"] == "The answer is (B)."
    assert last["content"].startswith("What is red?\nA. blood\nB. grass\n\nReason step by step")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "?", "choices": ["x"], "answer": 0}, "2 to 10 `choices`"),
        ({"choices": ["x", "y"], "answer": 0}, "a text as `question`"),
        ({"question": "?", "choices": ["x", "y"], "answer": 2}, "`answer` of row 1"),
        ({"question": "?", "choices": ["x", "y"], "answer": "both"}, "but is 'both'"),
        ({"question": "?", "choices": ["x", "y"]}, "but is None"),
    ],
)
def test_malformed_rows_are_named(write, row, message):
    with pytest.raises(LossyValueError, match=message):
        load("choices", write(row))


def test_missing_data_and_categories_are_named(write, tmp_path):
    with pytest.raises(LossyValueError, match="existing file"):
        load("choices", str(tmp_path / "nowhere.jsonl"))
    with pytest.raises(LossyValueError, match="no rows of the category 'music'"):
        load("choices", write(*ROWS), category="music")
