"""What needs an extra says so; test_distributions uses all else in a base install."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from hf_lossy_assist.errors import EXTRAS

WITHOUT = """
import sys
for name in {missing!r}:
    sys.modules[name] = None  # as if it were not installed
from hf_lossy_assist.cli import app
"""
MISSING = [name for names in EXTRAS.values() for name in names] + ["scipy", "pandas"]


def run(code: str) -> subprocess.CompletedProcess[str]:
    program = WITHOUT.format(missing=MISSING) + code
    return subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("mine --pair arithmetic --out labels", "lab"),
        ("train judge --data labels --out head", "lab"),
        ("advise --pair arithmetic", "lab"),
        ("calibrate --pair arithmetic --out x", "lab"),
        ("evaluate --pair arithmetic", "lab"),
        ("lm-eval --help", "lm-eval"),
    ],
)
def test_commands_name_their_extra(command: str, extra: str):
    done = run(f"app({command.split()!r})")
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ")
    assert re.match(rf"error: .*{command.split()[0]}.*` needs packages", done.stderr)
    assert f"pip install 'hf-lossy-assist[{extra}]'" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["calibrate", "advise", "evaluate", "mine", "train judge", "train verifier"])
def test_help_needs_no_extra(command: str):
    done = run(f"app({[*command.split(), '--help']!r})")
    assert done.returncode == 0, done.stderr
    assert "--out" in done.stdout
