"""``lossy-assist dropout-tables`` and ``lossy-assist acceptance``."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from hf_lossy_assist import bench, cli
from hf_lossy_assist.bench import dropout_choice
from hf_lossy_assist.cli import app
from hf_lossy_assist.pairs import evaluation

TABLES = ("PathAccuracy", "Agreement", "Divergence", "DropoutChoice")


def run(*arguments: str, status: int = 0):
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "100"})
    assert result.exit_code == status, result.output
    return result


def read(file):
    origin, *rows = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())
    assert origin["table"] == "provenance"
    return origin, rows


@pytest.fixture(autouse=True)
def _short_responses(monkeypatch):
    monkeypatch.setattr(evaluation, "MAX_NEW_TOKENS", 6)
    monkeypatch.setattr(dropout_choice, "MAX_NEW_TOKENS", 6)


def test_dropout_tables(tiny_pair_folder, tmp_path):
    out = tmp_path / "rows.jsonl"
    printed = run(
        "dropout-tables", "--folder", str(tiny_pair_folder), "--problems", "3", "--choice-problems", "2",
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
        "dropout-tables", "--folder", str(tiny_pair_folder), "--problems", "2", "--part", "agreement", "--dropouts",
        "0", "--out", str(out),
    )  # fmt: skip
    _, rows = read(out)
    assert [row["share"] for row in rows] == [0, 0, 0, 0, 1]


@pytest.mark.parametrize(
    "draft", [("--assistant", "draft"), ("--draft-layers", "0"), ("--draft-bits", "3")], ids=lambda draft: draft[0]
)
def test_acceptance_of_every_kind_of_draft(tiny_pair_folder, tmp_path, monkeypatch, draft):
    drafts = []

    def measure(target, draft, *args, **kwargs):
        drafts.append(draft)
        return bench.acceptance.measure(target, draft, *args, **kwargs)

    monkeypatch.setattr(cli.acceptance, "measure", measure)
    out, prompts = tmp_path / "rows.jsonl", tmp_path / "prompts.txt"
    prompts.write_text("Question: How\n\nAnswer:\nthird\n", encoding="utf-8")
    option, value = draft
    value = str(tiny_pair_folder / value) if option == "--assistant" else value
    printed = run(
        "acceptance", "--model", str(tiny_pair_folder / "target"), option, value, "--prompts", str(prompts),
        "--count", "2", "--gamma", "3", "--max-new-tokens", "5", "--temperature", "1.2", "--out", str(out),
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
    # The target has one layer, so a draft of that layer is the target; the other pair's model is not.
    assert modes["lossless", None]["acceptance_rate"] == 1 or option != "--draft-layers"
    assert modes["lossless", None]["acceptance_rate"] < 1 or option != "--assistant"
    levels = drafts[0].model.layers[0].mlp.up_proj.weight[0].unique().numel()
    assert (levels <= 7) is (option == "--draft-bits")


def test_acceptance_on_the_opening_lines_of_stories(tiny_pair_folder, tmp_path):
    out = tmp_path / "rows.jsonl"
    run(
        "acceptance", "--model", str(tiny_pair_folder / "target"), "--draft-bits", "4", "--count", "1",
        "--max-new-tokens", "2", "--temperature", "0", "--out", str(out),
    )  # fmt: skip
    origin, rows = read(out)
    assert origin["prompts"] == ["Once upon a time, there was a little girl named Lily."]
    assert {row["temperature"] for row in rows} == {None}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("acceptance",), "`--model` or `--pair`"),
        (("acceptance", "--model", "x", "--pair", "arithmetic"), "`--model` or `--pair`"),
        (("acceptance", "--model", "x"), "got none"),
        (
            ("acceptance", "--model", "x", "--draft-bits", "4", "--assistant", "y"),
            "['--assistant', '--draft-bits']",
        ),
        (("acceptance", "--model", "/nowhere/at/all", "--draft-bits", "4"), "'/nowhere/at/all'"),
        (("acceptance", "--model", "TARGET", "--draft-layers", "0;1"), "'0;1'"),
        (("acceptance", "--model", "TARGET", "--draft-layers", "3"), "`keep`"),
        (("acceptance", "--model", "TARGET", "--draft-bits", "1"), "`bits`"),
        (("acceptance", "--model", "TARGET", "--draft-bits", "4", "--prompts", "EMPTY"), "`--prompts`"),
        (("dropout-tables", "--pair", "arithmetics"), "'arithmetics'"),
        (("dropout-tables", "--folder", "FOLDER", "--dropouts", "a,b"), "`--dropouts`"),
    ],
    ids=lambda value: None if isinstance(value, str) else " ".join(value),
)
def test_errors_are_one_line(tiny_pair_folder, tmp_path, arguments, message):
    empty = tmp_path / "empty"
    empty.write_text("\n")
    places = {"TARGET": tiny_pair_folder / "target", "FOLDER": tiny_pair_folder, "EMPTY": empty}
    result = run(*(str(places.get(argument, argument)) for argument in arguments), status=2)
    *_, last = result.stderr.splitlines()  # models that load show a bar before
    assert last.startswith("error: ")
    assert message in last
