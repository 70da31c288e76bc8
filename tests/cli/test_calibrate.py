"""``lossy-assist calibrate``, and the commands that use what it writes."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.running import said

SETTINGS = ("--modes", "topk:k=2,topk:k=3,relaxed")
SMALL = ("--pair", "arithmetic", "--gamma", "2")
SHORT = ("--max-new-tokens", "4")


def outcomes(folder: Path) -> dict[str, str]:
    tested = json.loads((folder / "certificate.json").read_text(encoding="utf-8"))["tested"]
    return {each["mode"]: each["outcome"] for each in tested}


# Untrained models lose nothing against each other: all of their answers are wrong.
ALL_CERTIFIED = dict.fromkeys(["topk:k=2", "topk:k=3", "relaxed"], "certified")


def evaluated(folder: Path) -> str:
    settings = f"plain,{SETTINGS[1]}"
    said("evaluate", *SMALL, *SHORT, "--modes", settings, "--limit", "40", "--out", str(folder))
    return str(folder)


def test_the_path_from_nothing_to_a_certified_said(bundled, tmp_path: Path):
    certified, answers = tmp_path / "certified", evaluated(tmp_path / "answers")
    assert "chosen: " in said("calibrate", "--from", answers, "--max-loss", "50", "--out", str(certified))
    assert outcomes(certified) == ALL_CERTIFIED
    one = ("--modes", "topk:k=3", "--max-loss", "50", "--out", str(tmp_path / "one"))
    said("calibrate", "--from", answers, *one)
    assert outcomes(tmp_path / "one") == {"topk:k=3": "certified"}
    assert "no setting is certified" in said(
        "calibrate", "--from", answers, "--max-loss", "1", "--out", str(tmp_path / "none"), status=1
    )
    assert set(outcomes(tmp_path / "none").values()) == {"not certified", "not tested"}
    assert not (tmp_path / "none" / "generation_config.json").exists()
    refused = said("generate", "--pair", "arithmetic", "--mode", str(tmp_path / "none"), "2 + 2", status=2)
    assert "certifies no setting at 1 points; evaluate more problems" in refused
    (tmp_path / "advice").mkdir()
    (own := tmp_path / "advice" / "generation_config.json").write_text("{}")
    refused = said("calibrate", "--from", answers, "--max-loss", "1", "--out", str(own.parent), status=2)
    assert "`--out` has to be a folder for a certificate" in refused
    assert own.read_text() == "{}"
    pair = ("--pair", "arithmetic", "--mode", str(certified))
    assert "certificate" in said("generate", *pair, "--sample", "2 + 2", status=2), (
        "it was certified for greedy decoding"
    )
    said("generate", *pair, "--max-new-tokens", "4", "2 + 2")
    scored = f"plain,{certified}"
    printed = said("evaluate", *SMALL, *SHORT, "--modes", scored, "--limit", "2", "--out", str(tmp_path / "fresh"))
    assert certified.name in printed
