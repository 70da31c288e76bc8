"""``lossy-assist theory``."""

from __future__ import annotations

from PIL import Image
from typer.testing import CliRunner

from hf_lossy_assist import theory
from hf_lossy_assist.cli import app


def run(*arguments: str):
    return CliRunner().invoke(app, ["theory", *arguments], env={"COLUMNS": "120"})


def test_tables_and_plots(tmp_path):
    out = tmp_path / "new" / "folder"
    options = ["--r", "3", "--fpr", "0.2,0.6", "--alpha", "0.5,0.8", "--t-draft", "0.1", "--t-token", "0.02"]
    result = run("--out", str(out), *options, "--max-gamma", "6")
    assert result.exit_code == 0, result.output
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.output.splitlines() if "│" in line]
    assert ["0.9", *(f"{theory.sprinter_expected_run_length(0.9, b, 3):.2f}" for b in (0.2, 0.6))] in rows
    assert ["4", *(f"{theory.expected_speedup(a, 4, 0.1, (1, 0.02)):.2f}" for a in (0.5, 0.8))] in rows
    assert ["best γ", *(str(theory.best_gamma(a, 0.1, (1, 0.02), highest=6)) for a in (0.5, 0.8))] in rows
    for name in ("run_length.png", "speedup.png"):
        with Image.open(out / name) as image:
            assert min(image.size) > 400


def test_an_endless_run_is_said_and_plotted(tmp_path):
    result = run("--out", str(tmp_path), "--fpr", "0.5,1")
    assert result.exit_code == 0, result.output
    assert "inf" in result.output


def test_bad_options_are_one_line():
    for arguments, name in (
        (["--fpr", "1.5"], "`--fpr`"),
        (["--alpha", "x"], "`--alpha`"),
        (["--t-target", "0"], "`--t-target`"),
    ):
        result = run(*arguments)
        assert result.exit_code == 2
        assert name in result.output
        assert result.output.count("\n") == 1


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").touch()
    result = run("--out", str(tmp_path / "file"))
    assert result.exit_code == 2
    assert "'--out'" in result.output
