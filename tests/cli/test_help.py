"""``--help`` is quick, and says what there is; the groups of options have the names of the Python API."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import fields
from itertools import chain

import pytest

from hf_lossy_assist import __version__, evaluate, pairs
from hf_lossy_assist.cli import app, options
from tests.cli.running import invoke

COMMANDS = ["demo", "generate", "rules", "inspect", "advise", "evaluate", "calibrate", "mine", "train", "lm-eval"]
PAGES = [*COMMANDS[:-1], "train judge", "train verifier"]


def joined(text: str) -> str:
    """Return a text without its white space and boxes, of which wrapping makes something else."""
    return "".join(text.replace("│", "").split())


MISTAKES = [
    "frobnicate",
    "--frobnicate",
    "evaluate --threds 1",
    "evaluate --limit 0",
    "evaluate --pair arithmetic --task x",
]


@pytest.mark.parametrize("words", ["--help", "--version", *(f"{page} --help" for page in PAGES), *MISTAKES])
def test_help_and_mistakes_import_nothing_that_takes_time(words: str):
    code = (
        "import sys; from hf_lossy_assist.cli import main\n"
        f"try: main({words.split()!r})\n"
        "except SystemExit as ended: code = ended.code or 0\n"
        "else: code = 0\n"
        f"assert code == {2 if words in MISTAKES else 0}, code\n"
        "sys.exit(sorted({'torch', 'transformers', 'numpy'} & sys.modules.keys()) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_version_is_the_package_s():
    assert invoke(["--version"]).output == f"lossy-assist {__version__}\n"


def test_every_command_is_named_with_its_summary():
    shown = joined(invoke(["--help"], env={"COLUMNS": "200"}).stdout)
    for name in COMMANDS:
        assert joined(name + app[name].help.partition("\n\n")[0]) in shown


@pytest.mark.parametrize("name", PAGES)
def test_help_fits_80_columns_and_has_every_option_with_words(name: str):
    shown = invoke([*name.split(), "--help"], env={"COLUMNS": "80"}).stdout
    assert max(map(len, shown.splitlines())) <= 80
    _, (*_, command), _ = app.parse_commands(name.split())
    if name == "train":
        return
    for argument in command.assemble_argument_collection(parse_docstring=True):
        if argument.children:
            continue
        assert argument.name in shown
        assert argument.parameter.help, argument.name
        assert joined(argument.parameter.help) in joined(shown)


GROUPS = (options.ModelsWithHeads, options.Prompts, options.Drafting, options.Measuring)
OF_COMMANDS = {"data", "engine", "prompt_lookup", "sample", "vllm_python"}
"""What Python gives by other arguments, or by objects."""


def test_groups_share_no_option_and_have_the_names_of_the_python_api():
    loading, *others = ([each.name for each in fields(group)] for group in GROUPS)
    named = [*chain(*others)]
    assert len({*loading, *named}) == len(loading) + len(named)
    assert {*named} - OF_COMMANDS <= {*inspect.signature(evaluate).parameters}


def test_the_pairs_are_those_of_the_package():
    assert [*options.PairName.__args__] == [*pairs.NAMES]
