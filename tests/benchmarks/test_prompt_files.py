"""The prompts of a table follow from the data sets' files."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from benchmarks.prompt_files import app

CATEGORIES = ("writing", "coding", "translation", "summarization", "qa", "math_reasoning", "rag")


def test_they_are_the_first_short_ones_of_each_group_and_the_shortest_texts(tmp_path):
    rows = [
        {
            "question_id": i,
            "category": CATEGORIES[i % 7],
            "turns": [f"{i} " + "x" * (240 if i % 3 else 310 + i % 5), "?"],
        }
        for i in range(700)
    ]
    source = tmp_path / "question.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = {"--spec-bench": source, "--mt-bench": source, "--out": tmp_path}
    done = CliRunner().invoke(app, [str(word) for pair in files.items() for word in pair])
    assert done.exit_code == 0, done.output
    spec, sums, chats = (
        [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        for name in ("spec-bench", "summarization", "mt-bench")
    )
    groups = [CATEGORIES[int(row["prompt"].split()[0]) % 7] for row in spec]
    assert [groups.count(name) for name in CATEGORIES] == [7, 8, 15, 0, 15, 15, 0]
    assert all(int(row["prompt"].split()[0]) % 3 for row in spec + chats)
    assert [int(row["prompt"].split()[0]) for row in chats] == [i for i in range(700) if i % 3][:40]
    lengths = [len(row["turns"][0]) for row in sums]
    assert len(sums) == 40
    assert lengths == sorted(lengths)
    assert {row["category"] for row in sums} == {"summarization"}
