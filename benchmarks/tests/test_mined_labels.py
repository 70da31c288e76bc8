"""Labels of mining without the states."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import mined_labels
from hf_lossy_assist.cli import app
from hf_lossy_assist.training.label_folder import load_mined
from tests.tiny_pair import tiny_pair_folder  # noqa: F401
from tests.training.parts import Letters


def run(application, *arguments):
    result = CliRunner().invoke(application, [str(x) for x in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def options(tiny_pair_folder):  # noqa: F811
    target, draft = (tiny_pair_folder / role for role in ("target", "draft"))
    task = ["--task", "tests.training.parts:Letters", "--max-new-tokens", 8]
    return [*task, "--model", target, "--assistant", draft, "--dtype", "float32"]


class Counted(Letters):
    """Every other prompt has an answer that the target does not give at once."""

    def examples(self, split, n):
        return [replace(one, answer=str(i % 2)) for i, one in enumerate(super().examples(split, n))]


def test_states_are_read_anew_and_mining_goes_on(options, tmp_path):
    run(app, "mine", *options, "--limit", 4, "--out", tmp_path / "data")
    printed = run(mined_labels.app, "keep", tmp_path / "data", tmp_path / "labels.jsonl")
    mined = load_mined(tmp_path / "data")
    assert printed == f"4 prompts, {len(mined.tokens)} mismatches\n"
    # Every response is cut off at 8 tokens.
    whole = ["keep", tmp_path / "data", tmp_path / "short.jsonl", "--longest"]
    assert run(mined_labels.app, *whole, 7) == "0 prompts, 0 mismatches\n"
    assert run(mined_labels.app, *whole, 8) == printed
    kept = (tmp_path / "labels.jsonl").read_text().splitlines()
    (tmp_path / "labels.jsonl").write_text("\n".join(kept[1:]) + "\n")  # as of a run that was killed
    run(mined_labels.app, "restore", tmp_path / "labels.jsonl", *options, "--out", tmp_path / "again")
    again = load_mined(tmp_path / "again")
    assert sorted(again.prompts["prompt_id"]) == [1, 2, 3]
    rows = [[row for row in data.tokens if row["prompt_id"]] for data in (mined, again)]
    assert len(rows[1]) > 1
    for before, after in zip(*(sorted(x, key=lambda row: (row["prompt_id"], row["index"])) for x in rows), strict=True):
        states = [name for name in before if name.startswith(("target_", "draft_")) and not name.endswith("token")]
        assert {k: v for k, v in before.items() if k not in states} == {
            k: v for k, v in after.items() if k not in states
        }
        for name in states:
            torch.testing.assert_close(torch.tensor(after[name]), torch.tensor(before[name]))
    run(app, "mine", *options, "--limit", 5, "--out", tmp_path / "again")
    assert sorted(load_mined(tmp_path / "again").prompts["prompt_id"]) == [0, 1, 2, 3, 4]


def test_labels_of_other_prompts_are_refused(options, tmp_path):
    run(app, "mine", *options, "--limit", 2, "--out", tmp_path / "data")
    run(mined_labels.app, "keep", tmp_path / "data", tmp_path / "labels.jsonl")
    labels = (tmp_path / "labels.jsonl").read_text()
    moved = labels.replace('"prompt_id": 0', '"prompt_id": 2').replace('"prompt_id": 1', '"prompt_id": 3')
    (tmp_path / "labels.jsonl").write_text(moved)
    restore = ["restore", tmp_path / "labels.jsonl", *options, "--out", tmp_path / "again"]
    result = CliRunner().invoke(mined_labels.app, list(map(str, restore)))
    assert result.exit_code != 0
    assert "labels of another prompt than 2" in result.output + str(result.exception)


def test_changed_answers_are_completed(options, tmp_path):
    """What `mine` knows of changed answers is forgotten, and found out anew."""
    options[1] = "benchmarks.tests.test_mined_labels:Counted"
    run(app, "mine", *options, "--limit", 12, "--out", tmp_path / "data")
    run(mined_labels.app, "keep", tmp_path / "data", tmp_path / "known.jsonl")
    known = [json.loads(line) for line in (tmp_path / "known.jsonl").read_text().splitlines()]
    rights = [values[5] for record in known for values in record["mismatches"] if not record["solved"] and values[3]]
    assert any(rights)
    forgotten = [{**x, "solved": None, "mismatches": [values[:4] for values in x["mismatches"]]} for x in known]
    (tmp_path / "old.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in forgotten))
    complete = ["complete", tmp_path / "old.jsonl", "--out", tmp_path / "new.jsonl", "--batch-size", 3]
    printed = run(mined_labels.app, *complete, *options)
    assert printed == f"{len(rights)} changed answers of unsolved prompts, {sum(rights)} of them right\n"
    assert (tmp_path / "new.jsonl").read_text() == (tmp_path / "known.jsonl").read_text()


def test_an_interrupted_completion_goes_on(options, tmp_path, monkeypatch):
    options[1] = "benchmarks.tests.test_mined_labels:Counted"
    run(app, "mine", *options, "--limit", 12, "--out", tmp_path / "data")
    run(mined_labels.app, "keep", tmp_path / "data", tmp_path / "known.jsonl")
    known = [json.loads(line) for line in (tmp_path / "known.jsonl").read_text().splitlines()]
    forgotten = [{**x, "mismatches": [values[:4] for values in x["mismatches"]]} for x in known]
    (tmp_path / "old.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in forgotten))
    complete = ["complete", tmp_path / "old.jsonl", "--out", tmp_path / "new.jsonl", "--batch-size", 1]
    asked, search = [], mined_labels.Completing.search

    def interrupted(self, prompt):
        if len(asked) == 3:
            raise KeyboardInterrupt
        asked.append(prompt.id)
        return search(self, prompt)

    monkeypatch.setattr(mined_labels.Completing, "search", interrupted)
    with pytest.raises(AssertionError):
        run(mined_labels.app, *complete, *options)
    left = [json.loads(line) for line in (tmp_path / "new.jsonl").read_text().splitlines()]
    wanted = sum(len(values) < 6 for record in left for values in record["mismatches"])
    assert wanted > 0
    monkeypatch.setattr(mined_labels.Completing, "search", lambda self, prompt: asked.append(1) or search(self, prompt))
    run(mined_labels.app, *complete, *options)
    assert len(asked) == 3 + wanted
    assert (tmp_path / "new.jsonl").read_text() == (tmp_path / "known.jsonl").read_text()
