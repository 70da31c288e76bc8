"""Prompts of a file of one's own, and what counts as a right answer to them."""

from __future__ import annotations

import gzip
import json

import pytest

from hf_lossy_assist import LossyValueError, tasks
from hf_lossy_assist.tasks.prompts import Prompts


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
    task = tasks.load("prompts", written(tmp_path, {"prompt": "What?", **row}))
    (example,) = task.examples("test", 9)
    assert task.correct(example, response) is is_right
    assert task.score(example, response, "") == is_right
    assert task.keeps_answer(example, response, response) is (task.answer(example, response) is not None)


def test_a_file_says_by_itself_what_it_is(tmp_path):
    with_answers = written(tmp_path, {"question": "2 + 2?", "answer": "4"})
    assert Prompts(with_answers).scored
    assert not Prompts(written(tmp_path, {"prompt": "Hi"}, name="p.jsonl")).scored
    (tmp_path / "list.json").write_text('[{"prompt": "2 + 2?", "answer": 4}]')
    assert Prompts(str(tmp_path / "list.json")).examples("test", 1)[0].answer == "4"


@pytest.mark.parametrize(("row", "said"), [
    ({"prompt": "a"}, "row 2 of `data`.* an `answer`"),
    ({"answer": "a"}, "row 2 of `data`.* `prompt`"),
    ({"prompt": "a", "answer": ["b"]}, "a text or a number"),
    ({"prompt": "a", "answer": "b", "pattern": "("}, r"`pattern` in row 2 .* regular expression"),
    ({"prompt": "a", "answer": " . "}, "`answer` in row 2 .* has to say something"),
    ({"prompt": "x", "answer": "z"}, "row 2 of `data`.* an earlier row's prompt"),
    ({"prompt": "x", "answer": "y", "pattern": "(y)"}, "row 2 of `data`.* an earlier row's prompt"),
])  # fmt: skip
def test_bad_rows_are_named(tmp_path, row, said):
    with pytest.raises(LossyValueError, match=said):
        Prompts(written(tmp_path, {"prompt": "x", "answer": "y"}, row))


def test_a_line_ends_where_an_editor_ends_it(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_bytes("one\u2028and on\r\ntwo\x0cand on\n\r\n \nthree\r".encode("utf-8-sig"))
    said = [x.prompt for x in tasks.load("prompts", data=str(path)).examples("test", 99)]
    assert said == ["one\u2028and on", "two\x0cand on", "three"]


def test_a_prompt_with_an_answer_is_asked_once_too(tmp_path):
    row = {"prompt": "x", "answer": "Y", "pattern": "(y|n)"}
    task = Prompts(written(tmp_path, row, {"prompt": "a", "answer": "b", "pattern": ""}, {**row, "answer": "y"}))
    assert [(one.prompt, one.answer) for one in task.examples("test", 9)] == [("x", "y"), ("a", "b")]
    assert task.correct(task.examples("test", 9)[1], "b"), "an empty pattern is none"


def test_every_prompt_is_asked_once_in_the_file_s_order(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join([*(f"Prompt number {i}" for i in range(24)), "", "Prompt number 3"]))
    task = tasks.load("prompts", data=str(path))
    assert task.splits == ("test",)
    assert [x.prompt for x in task.examples("test", 99)] == [f"Prompt number {i}" for i in range(24)]
    assert len(task.examples("test", 4)) == 4, "no split hides any"
    with pytest.raises(LossyValueError, match=r"`split`.*'dev'"):
        task.examples("dev", 1)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("nowhere.txt", None), ("empty.txt", "\n \n"), ("rows.jsonl", '{"text": "Hi"}\n'), ("list.json", "[1]"),
        ("object.json", '{"prompt": "Hi"}'), ("broken.json", '{"text": 1'),
    ],
)  # fmt: skip
def test_bad_files_are_named(tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(LossyValueError, match=f"`data`.*{name}"):
        tasks.load("prompts", data=str(tmp_path / name))


def test_a_row_without_a_prompt_is_named_with_what_it_has(tmp_path):
    (path := tmp_path / "rows.jsonl").write_text('{"prompt": "Hi"}\n{"promt": "Ho"}\n')
    with pytest.raises(LossyValueError, match=r"^row 2 of `data` .* a `prompt`, a text, but has \['promt'\]"):
        tasks.load("prompts", data=str(path))


def test_rows_of_a_file_may_have_turns(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text('{"turns": ["Hi", "And?"]}\n{"prompt": "Bye"}\n')
    assert [x.prompt for x in tasks.load("prompts", data=str(path)).examples("test", 9)] == ["Hi", "Bye"]


def test_a_json_list_has_rows_or_texts_and_files_may_be_gzipped(tmp_path):
    (tmp_path / "prompts.json").write_text('["Hi", {"prompt": "Bye"}]')
    (tmp_path / "prompts.jsonl.gz").write_bytes(gzip.compress(b'{"prompt": "Hi"}\n{"prompt": "Bye"}'))
    for name in ("prompts.json", "prompts.jsonl.gz"):
        task = tasks.load("prompts", str(tmp_path / name))
        assert [example.prompt for example in task.examples("test", 9)] == ["Hi", "Bye"]
