"""Rows on disk."""

from __future__ import annotations

import json

from hf_lossy_assist.evaluation import records
from hf_lossy_assist.evaluation.quality import qualities


def test_rows_are_written_with_their_origin(tmp_path):
    rows = qualities({"a": [True], "b": [False, True], "c": [True]})
    file = tmp_path / "deep" / "rows.jsonl"
    with records.written(file, records.provenance("cpu", gamma=4)) as write:
        for count, row in enumerate(rows, 2):
            write(row)
            assert len(file.read_text().splitlines()) == count, "a row is on disk before the next one is measured"
    with records.written(None, {}) as write:
        write(rows[0])
    origin, *read = (json.loads(line) for line in file.read_text().splitlines())
    assert origin["table"] == "provenance"
    assert {"torch", "transformers", "argv", "date", "threads"} <= set(origin)
    assert (origin["device"], origin["gamma"]) == ("cpu", 4)
    assert [(row["table"], row["label"], row["problems"]) for row in read] == [
        ("Quality", "a", 1), ("Quality", "b", 2), ("Quality", "c", 1),
    ]  # fmt: skip
