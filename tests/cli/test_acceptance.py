"""``lossy-assist acceptance``."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from hf_lossy_assist.cli import app


def run(*arguments: str, status: int = 0):
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "100"})
    assert result.exit_code == status, result.output
    return result


def read(file):
    origin, *rows = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())
    assert origin["table"] == "provenance"
    return origin, rows


@pytest.fixture
def models(tiny_pair_folder):
    return ("--model", str(tiny_pair_folder / "target"), "--assistant", str(tiny_pair_folder / "draft"))


def test_every_rule_at_both_temperatures(models, tmp_path):
    out, prompts = tmp_path / "rows.jsonl", tmp_path / "prompts.txt"
    prompts.write_text("Question: How\n\nAnswer:\nthird\n", encoding="utf-8")
    printed = run(
        "acceptance", *models, "--prompts", str(prompts), "--count", "2", "--gamma", "3", "--max-new-tokens", "5",
        "--temperature", "1.2", "--out", str(out),
    ).stdout  # fmt: skip
    assert "2 prompts, greedy" in printed
    assert "2 prompts, temperature 1.2" in printed
    origin, rows = read(out)
    assert (origin["prompts"], origin["gamma"]) == (["Question: How", "Answer:"], 3)
    modes = {(row["mode"], row["temperature"]): row for row in rows}
    for temperature in (None, 1.2):
        for mode in ("target alone", "draft alone", "lossless", "dropmatch", "topk", "typical", "ensemble"):
            assert modes[mode, temperature]["tokens"] <= 10
    assert ("ears", None) not in modes
    assert modes["lossless", None]["acceptance_rate"] < 1
    assert len([row for row in rows if row["mode"] == "topk"]) == 4


def test_another_draft_than_the_pair_s(bundled, tiny_pair_folder, tmp_path):
    out = tmp_path / "rows.jsonl"
    run(
        "acceptance", "--pair", "arithmetic", "--assistant", str(tiny_pair_folder / "target"), "--count", "1",
        "--max-new-tokens", "5", "--temperature", "0", "--out", str(out),
    )  # fmt: skip
    _, rows = read(out)
    assert {row["mode"]: row["acceptance_rate"] for row in rows}["lossless"] == 1


def test_the_opening_lines_of_stories(models, tmp_path):
    out = tmp_path / "rows.jsonl"
    run(
        "acceptance", *models, "--count", "1",
        "--max-new-tokens", "2", "--temperature", "0", "--out", str(out),
    )  # fmt: skip
    origin, rows = read(out)
    assert origin["prompts"] == ["Once upon a time, there was a little girl named Lily."]
    assert {row["temperature"] for row in rows} == {None}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "`--model` and `--assistant` has to be given"),
        (("--model", "x", "--pair", "arithmetic"), "brings its own models; leave out `--model`"),
        (("--model", "x"), "`--assistant` has to be given"),
        (("--model", "/nowhere/at/all", "--assistant", "y"), "'/nowhere/at/all'"),
        (("--model", "TARGET", "--assistant", "TARGET", "--prompts", "EMPTY"), "`--prompts`"),
    ],
    ids=lambda value: None if isinstance(value, str) else " ".join(value),
)
def test_errors_are_one_line(tiny_pair_folder, tmp_path, arguments, message):
    empty = tmp_path / "empty"
    empty.write_text("\n")
    places = {"TARGET": tiny_pair_folder / "target", "EMPTY": empty}
    result = run("acceptance", *(str(places.get(argument, argument)) for argument in arguments), status=2)
    *_, last = result.stderr.splitlines()  # models that load show a bar before
    assert last.startswith("error: ")
    assert message in last
