"""``lossy-assist calibrate``, and the commands that use what it writes."""

from __future__ import annotations

import json
import re
from pathlib import Path

from typer.testing import CliRunner

from hf_lossy_assist.cli import app

SETTINGS = ("--modes", "topk:k=2,topk:k=3,relaxed")
SMALL = ("--pair", "arithmetic", "--set", "gamma=2")
SHORT = ("--max-new-tokens", "4")


def run(command: str, *arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(app, [command, *arguments], env={"COLUMNS": "160"})
    assert result.exit_code == status, result.output
    return result.output


def outcomes(folder: Path) -> dict[str, str]:
    tested = json.loads((folder / "certificate.json").read_text(encoding="utf-8"))["tested"]
    return {each["mode"]: each["outcome"] for each in tested}


# Untrained models lose nothing against each other: all of their answers are wrong.
ALL_CERTIFIED = dict.fromkeys(["topk:k=2", "topk:k=3", "relaxed"], "certified")


def test_the_path_from_nothing_to_a_certified_run(bundled, tmp_path: Path):
    certified = tmp_path / "certified"
    printed = run(
        "calibrate",
        *SMALL,
        "--set",
        "max_new_tokens=4",
        *SETTINGS,
        "--max-loss",
        "50",
        "--limit",
        "40",
        "--out",
        str(certified),
    )
    assert "chosen: " in printed
    assert "its test is expected to end, judged by its losses so far; 40 at most" in printed  # so the numbers may move
    first = re.search(r"topk:k=2: 1 of (\d+)", printed)
    assert int(first[1]) < 20, "as many problems as it takes if nothing is lost, and not all 40"
    assert outcomes(certified) == ALL_CERTIFIED
    answered = (certified / "answers" / "results.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(answered) < 4 * 40, "it stops where the evidence is enough"
    pair = ("--pair", "arithmetic", "--mode", str(certified))
    assert "certificate" in run("generate", *pair, "--sample", "2 + 2", status=2), (
        "it was certified for greedy decoding"
    )
    run("generate", *pair, "--max-new-tokens", "4", "2 + 2")
    scored = f"plain,{certified}"
    printed = run("evaluate", *SMALL, *SHORT, "--modes", scored, "--limit", "2", "--out", str(tmp_path / "fresh"))
    assert certified.name in printed


def test_nothing_certified_is_status_1(bundled, tmp_path: Path):
    assert "no setting is certified" in run(
        "calibrate", *SMALL, "--set", "max_new_tokens=4", *SETTINGS, "--limit", "3", "--out", str(tmp_path), status=1
    )
    assert set(outcomes(tmp_path).values()) == {"not certified", "not tested"}
    assert not (tmp_path / "generation_config.json").exists()


def test_answers_of_an_evaluation_serve_too(bundled, tmp_path: Path):
    settings = f"plain,{SETTINGS[1]}"
    run(
        "evaluate",
        *SMALL,
        *SHORT,
        "--modes",
        settings,
        "--limit",
        "40",
        "--set",
        "costs=false",
        "--out",
        str(tmp_path / "answers"),
    )
    run("calibrate", "--from", str(tmp_path / "answers"), "--max-loss", "50", "--out", str(tmp_path / "certified"))
    assert outcomes(tmp_path / "certified") == ALL_CERTIFIED
    one = ("--modes", "topk:k=3", "--max-loss", "50", "--out", str(tmp_path / "one"))
    run("calibrate", "--from", str(tmp_path / "answers"), *one)
    assert outcomes(tmp_path / "one") == {"topk:k=3": "certified"}


def test_settings_have_to_be_named(tmp_path: Path):
    assert "--modes" in run("calibrate", "--pair", "arithmetic", "--out", str(tmp_path), status=2)
