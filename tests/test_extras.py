"""What needs an extra says so; test_distributions uses all else in a base install."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from hf_lossy_assist.errors import EXTRAS

WITHOUT = """
import contextlib, io, json, sys
for name in {missing!r}:
    sys.modules[name] = None  # as if it were not installed
from hf_lossy_assist.cli import main
done = {{}}
for command in {commands!r}:
    out, err, status = io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(command.split())
        except SystemExit as ended:
            status = ended.code
    done[command] = status or 0, out.getvalue(), err.getvalue()
print(json.dumps(done))
"""
MISSING = [name for names in EXTRAS.values() for name in names] + ["scipy", "pandas"]
NEEDING = {
    "mine --pair arithmetic --out labels": "lab",
    "train judge --data labels --out head": "lab",
    "advise --pair arithmetic": "lab",
    "calibrate --from answers --out x": "lab",
    "evaluate --pair arithmetic": "lab",
    "lm-eval --help": "lm-eval",
}
HELP = [f"{name} --help" for name in ("calibrate", "advise", "evaluate", "mine", "train judge", "train verifier")]


@pytest.fixture(scope="module")
def done() -> dict[str, tuple[int, str, str]]:
    """Return the status, output and errors of all commands, from one process."""
    program = WITHOUT.format(missing=MISSING, commands=[*NEEDING, *HELP])
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True)
    return json.loads(run.stdout)


@pytest.mark.parametrize("command", NEEDING)
def test_commands_name_their_extra(done: dict[str, tuple[int, str, str]], command: str):
    status, _, said = done[command]
    assert status == 2, said
    assert re.match(rf"error: .*{command.split()[0]}.*` needs packages", said)
    assert f"pip install 'hf-lossy-assist[{NEEDING[command]}]'" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("command", HELP)
def test_help_needs_no_extra(done: dict[str, tuple[int, str, str]], command: str):
    status, shown, said = done[command]
    assert status == 0, said
    assert "--out" in shown
