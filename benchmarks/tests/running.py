"""Running a study's command."""

from __future__ import annotations

import typer
from click.testing import Result
from typer.testing import CliRunner


def run(app: typer.Typer, *arguments: object) -> Result:
    """Run a command, which has to succeed."""
    result = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "160"}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result
