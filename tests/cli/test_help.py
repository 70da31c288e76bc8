"""``--help`` of the commands that take a rule lists all rules as they are declared."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from hf_lossy_assist.acceptors import REGISTRY, describe, settings_of
from hf_lossy_assist.cli import app


def joined(text: str) -> str:
    """Return a text without its white space, of which wrapping makes something else."""
    return "".join(text.split())


@pytest.mark.parametrize("command", ["generate", "bench", "serve", "windows"])
def test_help_lists_every_rule_with_its_settings(command: str):
    result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    shown = joined(result.output)
    for rule in REGISTRY.values():
        assert joined(describe(rule).splitlines()[0]) in shown
        for setting in settings_of(rule):
            assert joined(f"- {setting}") in shown
