"""The tables and plots of SPRINTER's runs and of speedups."""

from __future__ import annotations

from PIL import Image

from benchmarks.theory_plots import app
from hf_lossy_assist import theory
from tests.benchmarks.running import run


def test_tables_and_plots(tmp_path):
    out = tmp_path / "new" / "folder"
    options = ["--r", "3", "--fpr", "0.2,1", "--alpha", "0.5,0.8", "--t-draft", "0.1", "--t-token", "0.02"]
    printed = run(app, "--out", out, *options, "--max-gamma", "6").output
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if "│" in line]
    assert ["0.9", f"{theory.sprinter_expected_run_length(0.9, 0.2, 3):.2f}", "inf"] in rows
    assert ["4", *(f"{theory.expected_speedup(a, 4, 0.1, (1, 0.02)):.2f}" for a in (0.5, 0.8))] in rows
    assert ["best γ", *(str(theory.best_gamma(a, 0.1, (1, 0.02), highest=6)) for a in (0.5, 0.8))] in rows
    for name in ("run_length.png", "speedup.png"):
        with Image.open(out / name) as image:
            assert min(image.size) > 400


def test_bad_options_are_one_line():
    for option, value in (("--fpr", "1.5"), ("--alpha", "x"), ("--t-target", "0")):
        printed = run(app, option, value, status=2).output
        assert f"`{option}`" in printed
        assert printed.count("\n") == 1
