"""Some of the trial's cases of the parts that are quick; the command runs them all."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch

from tests.trial import __main__ as trial
from tests.trial.parts import PARTS


@pytest.mark.parametrize(("part", "cases"), [("interruptions", 30), ("heads", 80), ("sandbox", 4), ("kills", 1)])
def test_some_cases(part: str, cases: int):
    outcomes = Counter(check() for _, check in PARTS[part][0](7, cases))
    assert sum(outcomes.values()) == cases


def test_the_command_counts_failures_and_keeps_what_it_knows(tmp_path, monkeypatch, capsys):
    def broken(seed: int, count: int):
        for number in range(count):
            yield f"case {number}", (lambda: "fine") if number else (lambda: 1 / 0)

    monkeypatch.setattr(trial, "PARTS", {"broken": (broken, 3)})
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    kept = tmp_path / "results.json"
    assert trial.main(["--json", str(kept)]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().out
    result = json.loads(kept.read_text())["broken"]
    assert (result["cases"], result["outcomes"]) == (3, {"fine": 2})
    assert [failure["case"] for failure in result["failures"]] == ["case 0"]
    monkeypatch.setattr(trial, "PARTS", {})
    assert trial.main(["--json", str(kept)]) == 1, "a part that is known is not run again"
