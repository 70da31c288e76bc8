"""Prompts from files of one's own."""

from __future__ import annotations

import gzip

import pytest

from hf_lossy_assist import LossyValueError, tasks


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


def test_a_score_is_the_overlap_with_the_text_that_is_compared(tmp_path):
    (tmp_path / "prompts.txt").write_text("One day\n")
    task = tasks.load("prompts", data=str(tmp_path / "prompts.txt"))
    [example] = task.examples("test", 1)
    assert (task.extract_answer(" a dog \n"), task.extract_answer("  ")) == ("a dog", None)
    assert task.equivalent("a dog", "a dog")
    assert not task.equivalent(None, None)
    assert task.score(example, "a b c d", "a b c d") == 1
    # 3 of 4 words in order, of texts of 4 and 6 words.
    assert task.score(example, "The cat sat down.", "the big cat: sat there quietly") == pytest.approx(0.6)
    assert task.score(example, "a b", "c d") == task.score(example, "", "a") == 0
