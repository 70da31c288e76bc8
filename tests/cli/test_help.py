"""``--help`` is quick, says what there is, and lists all rules as they are declared."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from hf_lossy_assist import __version__
from hf_lossy_assist.cli import COMMANDS, LazyCommand, app


def joined(text: str) -> str:
    """Return a text without its white space, of which wrapping makes something else."""
    return "".join(text.split())


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
    for name, (_, summary, extra) in COMMANDS.items():
        assert joined(f"{name} {summary}" + (f" [{extra}]" if extra else ".")) in shown
        assert LazyCommand(name).load().name == name


PAGES = [*COMMANDS, "train judge", "train verifier"]


@pytest.mark.parametrize("name", [name for name in PAGES if name != "lm-eval"])
def test_help_fits_two_screens_and_has_every_option(name: str):
    shown = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": "80"}).output
    assert len(shown.splitlines()) <= 90
    assert max(map(len, shown.splitlines())) <= 80
    command = LazyCommand(name.split()[0]).load()
    for part in name.split()[1:]:
        command = command.commands[part]
    for option in command.params:
        assert all(each in shown for each in option.opts if each.startswith("--"))
        assert joined(getattr(option, "help", None) or "") in joined(shown)
    for key, words in getattr(command, "settings", {}).items():
        assert joined(key + words) in joined(shown)


PANELS = ["Models:", "Prompts:", "Decoding:", "Output:"]


@pytest.mark.parametrize("name", [name for name in PAGES if name not in ("rules", "train", "lm-eval")])
def test_commands_have_at_most_16_options_in_panels(name: str):
    shown = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": "80"}).output
    command = LazyCommand(name.split()[0]).load()
    for part in name.split()[1:]:
        command = command.commands[part]
    options = [one for one in command.params if one.name != "help"]
    assert len(options) <= 16
    assert all(getattr(one, "rich_help_panel", None) for one in options if one.param_type_name == "option")
    found = [line for line in shown.splitlines() if line.endswith(":") and line[0] != " "]
    assert {*found} <= {*PANELS, "Arguments:", "Options:", "Settings, as in --set KEY=VALUE:"}
    assert ("--set" in shown) == ("Settings, as in --set KEY=VALUE:" in found)
    if {"mode", "modes"} & {one.name for one in options}:
        assert "`lossy-assist rules`" in shown
        assert {*PANELS[:1], *PANELS[2:]} <= {*found}
