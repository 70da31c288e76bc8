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


@pytest.mark.parametrize("name", ["evaluate", "advise", "calibrate"])
def test_commands_that_measure_have_at_most_16_options_in_panels(name: str):
    shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "80"}).output
    options = [option for option in LazyCommand(name).load().params if option.name != "help"]
    assert len(options) <= 16
    panels = [line for line in shown.splitlines() if line.endswith(":") and line[0] != " "]
    assert panels == ["Models:", "Prompts:", "Decoding:", "Output:", "Options:", "Settings, as in --set KEY=VALUE:"]
    assert "`lossy-assist rules`" in shown


@pytest.mark.parametrize("name", ["generate", "inspect"])
def test_commands_with_modes_say_where_rules_are_listed_and_spell_shared_options_alike(name: str):
    shown = joined(CliRunner().invoke(app, [name, "--help"]).output)
    for text in (
        "`lossy-assist rules`",
        "--gamma,--num-assistant-tokensN",
        "--head[RULE=]SOURCE",
        "--pair<",
        "--dtype",
    ):
        assert joined(text) in shown
