"""Studies of the package and of published claims: not installed, run in a checkout as ``python -m benchmarks.NAME``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from hf_lossy_assist.cli.console import CleanCommand
from hf_lossy_assist.cli.options import PAIRS
from hf_lossy_assist.cli.options import numbers as numbers
from hf_lossy_assist.store.folder import append_lines

PairName = Annotated[str, typer.Option(help=f"The pair: {PAIRS}.")]


def command(main: Callable[..., None]) -> typer.Typer:
    """Return an application of one command."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(cls=CleanCommand)(main)
    return app


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON lines to a file, in the place of what it has."""
    path.unlink(missing_ok=True)
    append_lines(path, rows)
