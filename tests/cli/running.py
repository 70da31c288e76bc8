"""Running the command line in this process."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from unittest import mock

from hf_lossy_assist.cli import main


@dataclass(frozen=True)
class Result:
    """What a command has printed, and its exit status."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


def invoke(words: Sequence[object], *, input: str = "", env: Mapping[str, str] | None = None) -> Result:
    """Run a command; errors that it does not turn into a line are the test's."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.dict(os.environ, env or {}),
        mock.patch("sys.stdin", io.StringIO(input)),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main([*map(str, words)])
        except SystemExit as ended:
            code = ended.code or 0
    return Result(code, out.getvalue(), err.getvalue())


def said(command: str, *words: object, status: int = 0, columns: int = 160) -> str:
    """Return what a command prints, which has to end with a status; of a success, without warnings."""
    result = invoke([*command.split(), *words], env={"COLUMNS": str(columns)})
    assert result.exit_code == status, result.output
    return result.output if status else result.stdout
