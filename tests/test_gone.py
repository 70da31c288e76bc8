"""Every removed name says what to use instead, in its error and on the page of migration."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hf_lossy_assist.call.config import KEY, LossyConfig
from hf_lossy_assist.cli import app
from hf_lossy_assist.errors import LossyValueError, nearest
from hf_lossy_assist.gone import GONE, check_gone

parse = LossyConfig.from_fields

PAGE = (Path(__file__).parents[1] / "docs" / "migration.md").read_text(encoding="utf-8")
NAMES = [(kind, name) for kind, names in GONE.items() for name in names]


@pytest.mark.parametrize("kind", GONE)
def test_other_names_pass(kind: str):
    check_gone(kind, "no such name")


@pytest.mark.parametrize(("kind", "name"), NAMES)
def test_the_error_and_the_page_name_the_replacement(kind: str, name: str):
    with pytest.raises(LossyValueError) as raised:
        check_gone(kind, name)
    instead = GONE[kind][name]
    assert instead in str(raised.value)
    assert f"| {kind} | `{name}` | {instead} |" in PAGE


@pytest.mark.parametrize("name", GONE["import"])
def test_every_removed_import_says_so(name: str):
    module, _, attribute = name.rpartition(".")
    with pytest.raises(LossyValueError, match="was removed"):
        getattr(import_module(module), attribute)


@pytest.mark.parametrize(
    "module", ["hf_lossy_assist", *(f"hf_lossy_assist.{x}" for x in ("acceptors", "calibration", "pairs", "tasks"))]
)
def test_an_import_that_went(module: str, monkeypatch):
    monkeypatch.setitem(GONE["import"], f"{module}.Former", "use `Later`")
    with pytest.raises(LossyValueError, match=f"import '{module}.Former' was removed: use `Later`"):
        exec(f"from {module} import Former")
    with pytest.raises(ImportError):
        exec(f"from {module} import NeverThere")


def test_a_rule_and_a_key_that_went(monkeypatch):
    monkeypatch.setitem(GONE["rule"], "former", "use `later`")
    monkeypatch.setitem(GONE[KEY], "formerly", "set `later`")
    for mode in ("former", ["topk", "former"], {"all_of": ["former"]}):
        with pytest.raises(LossyValueError, match="the rule 'former' was removed: use `later`"):
            parse(mode)
    for mode, config in (("topk", {"formerly": 1}), (["topk", "ears"], {"formerly": 1, "topk": {"k": 2}})):
        with pytest.raises(LossyValueError, match="the key of `lossy_config` 'formerly' was removed: set `later`"):
            parse(mode, config)


@pytest.mark.parametrize(
    "command",
    [
        "former",
        "train former",
        "rules former",
        "generate --pair arithmetic --mode former",
        "evaluate --pair arithmetic --modes plain,topk+former",
        "rules --former",
        "train judge --former=3",
    ],
)
def test_the_command_line_says_what_replaces_a_name(command: str, monkeypatch):
    for kind, name in (("command", "former"), ("command", "train former"), ("rule", "former"), ("option", "--former")):
        monkeypatch.setitem(GONE[kind], name, "use the later one")
    result = CliRunner().invoke(app, command.split())
    assert result.exit_code == 2
    assert "was removed: use the later one" in result.stderr
    assert result.stderr.count("\n") == 1


def test_names_that_were_never_there_resemble_others():
    names = ["lossless", "typical"]
    assert nearest("typicl", names) == "; did you mean 'typical'?"
    assert nearest("zzz", names) == ""
    assert CliRunner().invoke(app, ["no-such-command"]).exit_code == 2
    assert CliRunner().invoke(app, ["rules", "--no-such-option"]).exit_code == 2
