"""Spec-Bench's and SPEED-Bench's files: made-up rows of the published formats."""

from __future__ import annotations

import json
import warnings

import pytest

from hf_lossy_assist import LossyValueError, tasks

SPEC = [
    {"question_id": 81, "category": "writing", "turns": ["Write of Hawaii.", "Again, please."]},
    {"question_id": 91, "category": "roleplay", "turns": ["Be a king.", "Now a cook."]},
    {"question_id": 161, "category": "translation", "turns": ["Translate: Hallo"], "reference": ["Hello"]},
    {"question_id": 241, "category": "summarization", "turns": ["Summarize: a\n\nb"]},
    {"question_id": 162, "category": "translation", "turns": ["Translate: Welt"], "reference": ["world"]},
]
MASKED = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"
SPEED = [
    {
        "question_id": f"{i:03}", "category": category, "sub_category": "x", "turns": turns, "source": "s",
        "src_id": "", "difficulty": "easy", "multiturn": len(turns) > 1,
    }
    for i, (category, turns) in enumerate(
        [("coding", ["Sort a list."]), ("coding", ["Find a bug.", "Again."]), ("rag", [MASKED]), ("rag", ["Say."])]
    )
]  # fmt: skip


def written(folder, rows):
    path = folder / "question.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def shown(task, n=99):
    return [(example.category, example.prompt) for example in task.examples("test", n)]


def test_spec_bench_has_six_categories_that_take_turns(tmp_path):
    data = written(tmp_path, SPEC)
    assert shown(tasks.load("spec-bench", data)) == [
        ("mt_bench", "Write of Hawaii."), ("translation", "Translate: Hallo"), ("summarization", "Summarize: a\n\nb"),
        ("mt_bench", "Be a king."), ("translation", "Translate: Welt"),
    ]  # fmt: skip
    assert len(shown(tasks.load("spec-bench", data), 2)) == 2
    only = tasks.load("spec-bench", data, category="translation")
    assert shown(only) == [("translation", "Translate: Hallo"), ("translation", "Translate: Welt")]
    assert only.score(only.examples("test", 1)[0], "hello there", "hello") == pytest.approx(2 / 3)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_speed_bench_leaves_masked_prompts_out_and_says_how_many(tmp_path, suffix):
    data = written(tmp_path, SPEED)
    if suffix == "parquet":
        from pyarrow import Table, parquet

        data = str(tmp_path / "test-00000-of-00001.parquet")
        parquet.write_table(Table.from_pylist(SPEED), data)
    with pytest.warns(UserWarning, match="1 of the 4 prompts of .* are masked, and left out"):
        task = tasks.load("speed-bench", data)
    assert shown(task) == [("coding", "Sort a list."), ("rag", "Say."), ("coding", "Find a bug.")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(shown(tasks.load("speed-bench", written(tmp_path, SPEED[:2])))) == 2


@pytest.mark.parametrize(
    ("task", "rows", "options", "named"),
    [
        ("spec-bench", SPEC, {"category": "poetry"}, "`category`.*'poetry'"),
        ("spec-bench", [{"category": "qa"}], {}, "`turns`"),
        ("spec-bench", [{"turns": ["x"]}], {}, "'category'"),
        ("speed-bench", SPEED[:1], {"config": "throughput_3k"}, "`config`.*throughput_16k"),
        ("speed-bench", None, {}, r"absent\.parquet"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, task, rows, options, named):
    with pytest.raises(LossyValueError, match=named):
        tasks.load(task, str(tmp_path / "absent.parquet") if rows is None else written(tmp_path, rows), **options)
