"""``lossy-assist evaluate``."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest

from hf_lossy_assist.calibration import calibrate
from hf_lossy_assist.errors import LossyValueError
from hf_lossy_assist.evaluation import evaluation as module
from hf_lossy_assist.tasks.sandbox import isolation
from tests.cli.running import said

MODES = "plain,lossless,topk:k=2"
SMALL = ("--limit", "3", "--max-new-tokens", "6", "--gamma", "3")


run = partial(said, "evaluate")


def read(folder: Path):
    lines = (folder / "results.jsonl").read_text(encoding="utf-8").splitlines()
    return json.loads((folder / "summary.json").read_text()), [json.loads(line) for line in lines]


def test_modes_are_scored_and_compared(bundled, tmp_path):
    given = ("--batch-size", "2", "--out", str(tmp_path))
    printed = run("--pair", "arithmetic", "--modes", MODES, *SMALL, *given)
    summary, rows = read(tmp_path)
    assert list(summary) == MODES.split(",")
    assert {(row["mode"], row["id"]) for row in rows} == {(mode, i) for mode in summary for i in range(3)}
    assert "points against" in printed
    assert all(mode in printed for mode in summary)
    run("--pair", "arithmetic", "--modes", "lossless,typical", *SMALL, "--reference", "plain", *given, status=2)
    run("--pair", "arithmetic", "--modes", f"{MODES},typical", *SMALL, *given)
    summary, again = read(tmp_path)
    assert again[: len(rows)] == rows
    assert list(summary)[-1] == "typical"


def test_an_advice_is_an_option_of_the_command(bundled, tmp_path, monkeypatch):
    problem = {
        "task_id": "mine/0", "prompt": "def inc(x):\n", "entry_point": "inc",
        "canonical_solution": "    return x + 1\n", "test": "def check(f):\n    assert f(1) == 2\n",
    }  # fmt: skip
    (tmp_path / "problems.jsonl").write_text(json.dumps(problem))
    monkeypatch.setattr(isolation, "unavailable", lambda: "not today")
    arguments = ["--pair", "arithmetic", "--task", "code", "--data", str(tmp_path / "problems.jsonl"), *SMALL]
    refusal = run(*arguments, "--modes", "plain", status=2)
    (advice,) = re.findall(r"or set `(--.*?)` to run programs with all of your own rights", refusal)
    with pytest.warns(UserWarning, match="`unsafe_no_isolation` is set"):
        assert "plain" in run(*arguments, "--modes", "plain", *advice.split())


def test_models_and_a_task_of_one_s_own(tiny_pair_folder, tmp_path):
    problems = tmp_path / "test.jsonl"
    problems.write_text("".join(f'{{"question": "What are {i} dozen?", "answer": "#### {12 * i}"}}\n' for i in (2, 3)))
    models = ("--model", str(tiny_pair_folder / "target"), "--assistant", str(tiny_pair_folder / "draft"))
    task = ("--task", "gsm8k", "--data", str(problems))
    drawn = ("--sample", "--temperature", "1.2", "--top-p", "0.9", "--out", str(tmp_path / "out"))
    printed = run(*models, *task, "--modes", "plain,lossless,ears", *SMALL, *drawn)
    assert "ears" in printed
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert {mode["top_p"] for mode in manifest["modes"].values()} == {0.9}
    with pytest.raises(LossyValueError, match="without `top_p`"):
        calibrate(tmp_path / "out", 3)
    plain = run(*models[:2], *task, "--modes", "plain", *SMALL, "--dtype", "float32")
    assert "plain" in plain


@pytest.mark.parametrize("named", [False, True])
def test_prompt_lookup_drafts_in_the_pair_s_place_or_before_a_draft_that_is_named(bundled, tmp_path, named):
    draft = (*SMALL, "--assistant", "draft") if named else SMALL[:-2]
    run("--pair", "arithmetic", *draft, "--prompt-lookup", "2", "--out", str(tmp_path))
    summary, rows = read(tmp_path)
    assert list(summary) == ["plain", "lossless", "min_p", "regret"]
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert (manifest["draft"] is not None, manifest.get("prompt_lookup_num_tokens")) == (named, 2 if named else None)
    assert {mode.get("num_assistant_tokens") for mode in manifest["modes"].values()} == {None, 3 if named else 2}
    plain, lossless = ({row["text"] for row in rows if row["mode"] == mode} for mode in ("plain", "lossless"))
    assert plain == lossless


def test_ctrl_c_keeps_what_was_answered(bundled, tmp_path, monkeypatch):
    asked, answer = [], module.run_request

    def interrupted(*given, **options):
        if given[3] > module._WARM_UP_TOKENS:
            asked.append(given)
            if len(asked) == 5:
                raise KeyboardInterrupt
        return answer(*given, **options)

    monkeypatch.setattr(module, "run_request", interrupted)
    arguments = ("--pair", "arithmetic", "--modes", MODES, *SMALL, "--out", str(tmp_path))
    assert "stopped; repeat the command to continue from" in run(*arguments, status=130)
    kept = len((tmp_path / "results.jsonl").read_text().splitlines())
    assert kept >= 3, "the first problem's answers, at least"
    run(*arguments)
    assert len(asked) == 5 + 9 - kept
    assert len(read(tmp_path)[1]) == 9


def test_prompts_of_a_file_are_only_timed_and_every_rule_can_take_part(tiny_pair_folder, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Question: How\n\nAnswer:\nthird\n", encoding="utf-8")
    models = ("--model", str(tiny_pair_folder / "target"), "--assistant", str(tiny_pair_folder / "draft"))
    printed = run(
        *models, "--data", str(prompts), "--limit", "2", "--max-new-tokens", "5", "--modes", "plain,stock,all",
        "--dtype", "bfloat16", "--out", str(tmp_path),
    )  # fmt: skip
    summary, rows = read(tmp_path)
    assert {row["score"] for row in rows} == {None}
    assert all(f" {rule} " in printed for rule in ("lossless", "topk", "near_top", "margin"))
    assert "fly" not in summary, "it changes nothing in drafts of five tokens"
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["dtype"] == "bfloat16"


def test_problems_of_one_s_own_are_scored_and_all_are_asked(tiny_pair_folder, tmp_path):
    rows = [{"prompt": f"Question: 1 or {i}?", "answer": "1", "pattern": "1"} for i in range(24)]
    (data := tmp_path / "my.jsonl").write_text("\n".join(map(json.dumps, rows)))
    models = ("--model", str(tiny_pair_folder / "target"), "--data", str(data), "--max-new-tokens", "3")
    run(*models, "--modes", "plain", "--limit", "4", "--out", str(tmp_path))
    summary, rows = read(tmp_path)
    assert (len(rows), summary["plain"]["n"]) == (4, 4)
    assert {row["score"] for row in rows} <= {0, 1}
