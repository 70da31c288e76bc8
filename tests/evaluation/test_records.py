"""Rows on disk."""

from __future__ import annotations

import json

import pytest

from hf_lossy_assist.evaluation import records
from hf_lossy_assist.evaluation.comparison import Spread


def test_rows_are_written_with_their_origin(tmp_path):
    rows = [Spread(median, 0.0, 9.0) for median in (1.0, 3.0, 2.0)]
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
    assert [(row["table"], row["median"]) for row in read] == [("Spread", 1.0), ("Spread", 3.0), ("Spread", 2.0)]


@pytest.mark.parametrize(
    ("started", "said"),
    [
        (["/bin/python", "/bin/lossy-assist"], "lossy-assist bench --out x"),
        (["/bin/python", "-u", "-m", "hf_lossy_assist"], "lossy-assist bench --out x"),
        (["/bin/python", "-m", "benchmarks.grown_models"], "python -m benchmarks.grown_models bench --out x"),
    ],
)
def test_the_command_line_is_that_which_one_would_type(started, said):
    arguments = ["bench", "--out", "x"]
    assert records._command_line([*started, *arguments], arguments) == said.split()
