"""``--help`` is quick, says what there is, and lists all rules as they are declared."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from hf_lossy_assist import __version__
from hf_lossy_assist.acceptors import REGISTRY, describe, settings_of
from hf_lossy_assist.cli import COMMANDS, LazyCommand, app


def joined(text: str) -> str:
    """Return a text without its white space, of which wrapping makes something else."""
    return "".join(text.split())


@pytest.mark.parametrize("command", ["generate", "bench"])
def test_help_lists_every_rule_with_its_settings(command: str):
    result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    shown = joined(result.output)
    for rule in REGISTRY.values():
        assert joined(describe(rule).splitlines()[0]) in shown
        for setting in settings_of(rule):
            assert joined(f"- {setting}") in shown


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["frobnicate"], ["--frobnicate"]])
def test_help_and_mistakes_import_nothing_that_takes_time(arguments: list[str]):
    code = (
        "import sys; from hf_lossy_assist.cli import app\n"
        f"try: app({arguments!r})\n"
        "except SystemExit: pass\n"
        "sys.exit(sorted({'torch', 'transformers', 'numpy'} & sys.modules.keys()) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_version_is_the_package_s():
    assert CliRunner().invoke(app, ["--version"]).output == f"lossy-assist {__version__}\n"


def test_every_command_is_named_with_its_summary_and_there():
    shown = joined(CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output)
    for name, (_, summary) in COMMANDS.items():
        assert joined(name + summary.rstrip(".")) in shown
        assert LazyCommand(name).load().name == name


@pytest.mark.parametrize("name", COMMANDS)
def test_help_keeps_its_brackets(name: str):
    """Brackets as in ``[@GAMMA]`` are not read as markup."""
    shown = joined(CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"}).output)
    for option in LazyCommand(name).load().params:
        assert joined((getattr(option, "help", None) or "").replace("\\[", "[")) in shown.replace("│", "")
