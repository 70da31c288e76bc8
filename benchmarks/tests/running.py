"""Running a study's command."""

from __future__ import annotations

import shlex
from pathlib import Path

import typer
from click.testing import Result
from typer.testing import CliRunner

README = Path(__file__).parents[1] / "README.md"


def run(app: typer.Typer, *arguments: object, status: int = 0) -> Result:
    """Run a command, and expect an exit status."""
    result = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "160"})
    assert result.exit_code == status, result.output
    return result


def commands(study: str) -> list[list[str]]:
    """Return the arguments of a study's commands in the README."""
    lines = (
        shlex.split(line) for line in README.read_text(encoding="utf-8").splitlines() if line.startswith("python ")
    )
    return [words[3:] for words in lines if words[1:3] == ["-m", f"benchmarks.{study}"]]
