"""Problems of a file of one's own: what counts as right."""

from __future__ import annotations

import json

import pytest

from hf_lossy_assist import LossyValueError, tasks
from hf_lossy_assist.tasks.own_problems import Problems, of_file
from hf_lossy_assist.tasks.plain_prompts import Prompts


def written(folder, *rows, name="my.jsonl") -> str:
    (folder / name).write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(folder / name)


RIGHT = [
    (
        {"answer": "Paris"},
        [
            "Paris",
            " paris. ",
            '"Paris"',
            "The answer is Paris.",
            "Answer: **Paris**\nQuestion: …",
            "The answer is:\n\nParis",
        ],
    ),
    ({"answer": "Great Britain"}, ["great  britain", "ANSWER = Great Britain!"]),
    ({"answer": 42}, ["It is 42.", "First 6, then 42", "answer is $42.00, not 41", "#### 42\n"]),
    ({"answer": "1,000"}, ["1000", "so 1,000.0"]),
    ({"answer": "5/10"}, ["0.5"]),
    ({"answer": "12*2=24\n#### 24"}, ["That makes 24."]),
    ({"answer": "B", "pattern": r"\(([A-D])\)"}, ["(B)", "Not (A) but (B), I think."]),
    ({"answer": "yes", "pattern": r"(?i)\byes\b"}, ["Well, YES of course"]),
    ({"answer": "7", "pattern": r"x = (\d+)"}, ["x = 3, no: x = 7"]),
]
WRONG = [
    ({"answer": "Paris"}, ["", "London", "Paris and London", "The answer is London, near Paris"]),
    ({"answer": 42}, ["", "no number", "42, no, 43", "4.2"]),
    ({"answer": "n't no"}, ["The answer isn't no"]),
    ({"answer": "B", "pattern": r"\(([A-D])\)"}, ["B", "(B), or rather (C)", ""]),
]


@pytest.mark.parametrize(
    ("row", "response", "is_right"),
    [(row, text, right) for right, cases in ((True, RIGHT), (False, WRONG)) for row, texts in cases for text in texts],
)
def test_an_answer_is_right_after_normalisation_or_by_its_pattern(tmp_path, row, response, is_right):
    task = tasks.load("problems", written(tmp_path, {"prompt": "What?", **row}))
    (example,) = task.examples("test", 9)
    assert task.correct(example, response) is is_right
    assert task.score(example, response, "") == is_right
    assert task.keeps_answer(example, response, response) is (task.answer(example, response) is not None)


def test_a_file_says_by_itself_what_it_is(tmp_path):
    with_answers = written(tmp_path, {"question": "2 + 2?", "answer": "4"})
    assert isinstance(of_file(with_answers), Problems)
    assert isinstance(of_file(written(tmp_path, {"prompt": "Hi"}, name="p.jsonl")), Prompts)
    (tmp_path / "list.json").write_text('[{"prompt": "2 + 2?", "answer": 4}]')
    assert of_file(str(tmp_path / "list.json")).examples("test", 1)[0].answer == "4"
    assert of_file(with_answers).splits == ("test",)


@pytest.mark.parametrize(("row", "said"), [
    ({"prompt": "a"}, "row 2 of `data`.* an `answer`"),
    ({"answer": "a"}, "row 2 of `data`.* `prompt`"),
    ({"prompt": "a", "answer": ["b"]}, "a text or a number"),
    ({"prompt": "a", "answer": "b", "pattern": "("}, r"`pattern` in row 2 .* regular expression"),
    ({"prompt": "a", "answer": " . "}, "`answer` in row 2 .* has to say something"),
])  # fmt: skip
def test_bad_rows_are_named(tmp_path, row, said):
    with pytest.raises(LossyValueError, match=said):
        of_file(written(tmp_path, {"prompt": "x", "answer": "y"}, row))
