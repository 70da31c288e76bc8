"""The command that measures DropMatch's tables."""

from __future__ import annotations

import json

import pytest

from benchmarks.dropout_tables import app
from hf_lossy_assist.tasks import Arithmetic
from tests.benchmarks.running import run

TABLES = ("PathAccuracy", "Agreement", "Divergence", "DropoutChoice")


def read(file):
    origin, *rows = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())
    assert origin["table"] == "provenance"
    return origin, rows


@pytest.fixture(autouse=True)
def _short_responses(monkeypatch):
    monkeypatch.setattr(Arithmetic, "max_new_tokens", 6)


def test_dropout_tables(tiny_pair_folder, tmp_path):
    out = tmp_path / "rows.jsonl"
    printed = run(
        app, "--folder", str(tiny_pair_folder), "--problems", "3", "--choice-problems", "2",
        "--dropouts", "0.1,0.4", "--choice-dropouts", "0.3", "--paths", "3", "--gamma", "2", "--seed", "5",
        "--out", str(out),
    ).stdout  # fmt: skip
    for title in ("Accuracy (%) of each path alone", "agree on the majority", "by criterion", "end to end"):
        assert title in printed
    origin, rows = read(out)
    assert (origin["problems"], origin["choice_problems"], origin["seed"]) == (3, 2, 5)
    by_table = {name: [row for row in rows if row["table"] == name] for name in TABLES}
    assert [len(by_table[name]) for name in TABLES] == [1 + 2 * 3, 2 * 3, 2 * 3, 1 + 2]
    for dropout in (0.1, 0.4):
        for name in ("Agreement", "Divergence"):
            assert sum(r["share"] for r in by_table[name] if r["dropout"] == dropout) == pytest.approx(1)


def test_one_part_alone(tiny_pair_folder, tmp_path):
    out = tmp_path / "rows.jsonl"
    run(
        app, "--folder", str(tiny_pair_folder), "--problems", "2", "--part", "agreement", "--dropouts",
        "0", "--out", str(out),
    )  # fmt: skip
    _, rows = read(out)
    assert [row["share"] for row in rows] == [0, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("--pair", "arithmetics"), "'arithmetics'"), (("--folder", "FOLDER", "--dropouts", "a,b"), "`--dropouts`")],
    ids=["pair", "dropouts"],
)
def test_errors_are_one_line(tiny_pair_folder, arguments, message):
    result = run(app, *(tiny_pair_folder if argument == "FOLDER" else argument for argument in arguments), status=2)
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
