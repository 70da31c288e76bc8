"""Predicted beside seen tokens: the cells that are kept, and a few that are measured now."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import replayed_rounds
from benchmarks.replayed_rounds import difference
from benchmarks.tests.running import run

KEPT = Path(replayed_rounds.__file__).parent / "replay" / "arithmetic.jsonl"


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("drawn", [False, True])
def test_kept_cells_are_predicted_within_their_bounds(drawn):
    cells = [cell for cell in read(KEPT) if cell["drawn"] == drawn]
    assert len(cells) >= 40
    assert all(len(cell["seen"][0]) >= 100 for cell in cells)
    errors, low, high = np.array([difference(cell) for cell in cells]).T
    assert np.mean((low <= 0) & (high >= 0)) >= 0.93
    assert np.abs(errors).mean() <= 0.02
    assert np.abs(errors).max() <= 0.05


@pytest.mark.parametrize("drafter", ["eagle3", "dflash", "lookup", "lookup-first"])
def test_kept_cells_of_other_drafters_are_exact_losslessly(drafter):
    cells = read(KEPT.with_name(f"arithmetic-{drafter}.jsonl"))
    lossless = [cell for cell in cells if cell["mode"] == "lossless" and not cell["drawn"]]
    assert [cell["predicted"] for cell in lossless] == [cell["seen"] for cell in lossless]
    assert (len(lossless), sum(not cell["drawn"] for cell in cells)) == (2, 12)
    assert max(abs(difference(cell)[0]) for cell in cells if cell["mode"] != "everything") <= 0.1


def test_cells_measured_now_are_predicted(tmp_path):
    """Four prompts: greedily lossless is exact, and no rule is off by more than its interval allows."""
    out = tmp_path / "cells.jsonl"
    options = ("--prompts", 4, "--gammas", "8", "--batch", 4, "--modes", "typical,ears:beta=1.0", "--out", out)
    assert "right; relative error" in run(replayed_rounds.app, *options).output
    cells = {(cell["drawn"], cell["mode"]): cell for cell in read(out)}
    assert cells.keys() >= {(False, "typical"), (True, "typical"), (True, "ears:beta=1.0")}
    assert cells[False, "lossless"]["predicted"] == cells[False, "lossless"]["seen"]
    for cell in cells.values():
        _, low, high = difference(cell)
        assert low - 0.02 <= 0 <= high + 0.02
