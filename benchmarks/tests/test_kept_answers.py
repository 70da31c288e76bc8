"""Answers without texts: evaluations go on with them, and sum up to the same."""

from __future__ import annotations

import json

from typer.testing import CliRunner

import hf_lossy_assist
from benchmarks import kept_answers
from hf_lossy_assist import pairs
from hf_lossy_assist.evaluation.answers import load_answers


def test_an_evaluation_goes_on_with_answers_without_texts(tmp_path):
    pair = pairs.load("arithmetic")

    def run(modes: str, limit: int) -> None:
        hf_lossy_assist.evaluate(
            pair.target, pair.draft, tokenizer=pair.tokenizer, task=pair.task, modes=modes, limit=limit,
            max_new_tokens=24, out=tmp_path / "own",
        )  # fmt: skip

    def keep() -> dict:
        result = CliRunner().invoke(kept_answers.app, [str(tmp_path / "own"), str(tmp_path / "kept")])
        assert result.exit_code == 0, result.output
        return json.loads((tmp_path / "kept" / "summary.json").read_text())

    run("plain,lossless", 2)
    assert keep() == json.loads((tmp_path / "own" / "summary.json").read_text())
    plan, before = load_answers(tmp_path / "kept")
    assert str(tmp_path) not in json.dumps(plan)
    assert all(answer.text.startswith("crc32:") for answer in before)
    (tmp_path / "own" / "results.jsonl").write_bytes((tmp_path / "kept" / "results.jsonl").read_bytes())
    run("plain,lossless,topk", 3)  # only the new mode and the new problem are answered
    summary = keep()
    after = load_answers(tmp_path / "kept")[1]
    assert [answer for answer in after if answer in before] == before
    assert {label: (row["n"], row["same_texts"]) for label, row in summary.items() if label != "topk"} == {
        "plain": (3, 3), "lossless": (3, 3),
    }  # fmt: skip
