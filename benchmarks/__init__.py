"""Studies of the package and of published claims: not installed, run in a checkout as ``python -m benchmarks.NAME``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from hf_lossy_assist.cli.console import CleanCommand, CleanGroup
from hf_lossy_assist.cli.options import PAIRS
from hf_lossy_assist.cli.options import numbers as numbers
from hf_lossy_assist.store.folder import write_whole

PairName = Annotated[str, typer.Option(help=f"The pair: {PAIRS}.")]


def command(main: Callable[..., None]) -> typer.Typer:
    """Return an application of one command."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(cls=CleanCommand)(main)
    return app


def evaluations(change: Callable[..., None]) -> typer.Typer:
    """Return an application of ``evaluate``, after options by which ``change`` sets how the models change first."""
    from hf_lossy_assist.cli.evaluate import evaluate  # needs the extra `lab`, as not every study does

    app = typer.Typer(cls=CleanGroup, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    app.command("evaluate", cls=CleanCommand)(evaluate)
    app.callback()(change)
    return app


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON lines to a file, in the place of what it has."""
    write_whole(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
