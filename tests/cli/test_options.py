"""How options are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from hf_lossy_assist.cli.console import flattened
from hf_lossy_assist.cli.models import Openings
from hf_lossy_assist.cli.options import TrainOptions
from hf_lossy_assist.errors import LossyValueError
from hf_lossy_assist.evaluation.modes import parse_modes


@dataclass(frozen=True, kw_only=True)
class Options(TrainOptions):
    width: Annotated[int, typer.Option("--hidden", min=1, help="How wide.")] = 3
    seed: Annotated[int, typer.Option(min=0)] = 7


def test_the_fields_of_a_dataclass_are_a_command_s_options():
    got = []
    app = typer.Typer()

    @app.command()
    @flattened
    def command(options: Options) -> None:
        """Do it."""
        got.append(options)

    result = CliRunner().invoke(app, ["--out", "folder", "--hidden", "5"])
    assert result.exit_code == 0, result.output
    assert got == [Options(out=Path("folder"), width=5)]
    assert got[0].seed == 7
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    assert "How wide." in shown
    assert "Do it." in shown
    for wrong in ([], ["--out", "folder", "--hidden", "0"]):
        assert CliRunner().invoke(app, wrong).exit_code == 2


def test_modes_to_compare():
    plain, stock, several, auto = parse_modes("plain, stock@3,topk@7:k=3:tolerance=0.5,lossless@auto", 5)
    assert (plain.label, stock.label, stock.gamma) == ("plain", "stock@3", 3)
    assert (several.gamma, several.settings) == (7, {"k": 3, "tolerance": 0.5})
    assert auto.gamma == "auto"
    assert parse_modes("stock", "auto")[0].gamma == 5
    assert {mode.temperature for mode in parse_modes("plain,stock,topk", 5, 0.7)} == {0.7}


def test_baselines():
    draft, everything = parse_modes("draft,everything@7", 5, 0.5)
    assert (draft.answers, draft.gamma, draft.temperature) == ("draft", None, 0.5)
    assert (everything.label, everything.rule, everything.gamma) == ("everything@7", "thresholds", 7)


def test_prompts_without_a_task_are_for_tests():
    assert len(Openings().examples("test", 3)) == 3
    with pytest.raises(LossyValueError, match="`split` has to be one of"):
        Openings().examples("train", 3)
