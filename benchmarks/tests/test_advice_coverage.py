"""Predicted speeds on foreign prompts: the cells that are kept, and a few that are measured now."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks import advice_coverage
from benchmarks.advice_coverage import STYLES, prompts_of
from benchmarks.tests.running import run

KEPT = Path(advice_coverage.__file__).parent / "replay" / "coverage.jsonl"


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("drawn", [False, True])
def test_kept_cells_are_inside_intervals_that_say_something(drawn):
    cells = [cell for cell in read(KEPT) if cell["drawn"] == drawn]
    assert {(cell["set"], cell["gamma"]) for cell in cells} >= {(name, n) for name in STYLES for n in (3, 6, 12)}
    assert len(cells) >= 100
    assert np.mean([cell["low"] <= cell["seen"] <= cell["high"] for cell in cells]) >= 0.9
    assert np.mean([math.log(cell["high"] / cell["low"]) / 2 for cell in cells]) <= 0.2


@pytest.mark.parametrize("style", STYLES)
def test_prompts_differ(style):
    texts = prompts_of(style, 60)
    assert len({*texts}) == 60
    assert texts[:10] == prompts_of(style, 10)


def test_cells_measured_now_are_predicted(tmp_path):
    out = tmp_path / "cells.jsonl"
    options = ("--prompts", 2, "--gammas", "3", "--styles", "code", "--modes", "near_top", "--out", out)
    assert "right" in run(advice_coverage.app, *options).output
    cells = {(cell["drawn"], cell["mode"]): cell for cell in read(out)}
    assert cells.keys() >= {(False, "near_top"), (True, "near_top"), (False, "everything")}
    assert all(cell["low"] <= cell["times_lossless"] <= cell["high"] for cell in cells.values())
