"""Errors are one line, and speak of the options that exist there."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from hf_lossy_assist.cli import app


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "evaluate --pair arithmetic --task gsm8k --split train --data /no/such",
            "`--data` has to be",
        ),
        ("evaluate --pair arithmetic --task gsm", "`--task` has to be one of"),
        ("evaluate --pair arithmetic --modes plain,plain", "`--modes` has to name every mode once"),
        ("generate --pair arithmetic --mode tpok", "`--mode` has to be one of"),
        ("generate --pair arithmetic --mode topk:K=1", "`--mode` key 'K' is unknown"),
        ("generate --model M --assistant A --mode judge P", "`--head` has to be given for the rule 'judge'"),
        ("mine --pair arithmetic --task gsm8k --task-data /no --out OUT", "`--task-data` has to be"),
        ("mine --pair arithmetic --out OUT --split nonsense --num-prompts 1", "`--split` has to be one of"),
    ],
)
def test_errors_name_options(arguments: str, message: str, bundled, tmp_path):
    result = CliRunner().invoke(app, arguments.replace("OUT", str(tmp_path)).split())
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
