"""Progress bars and one-line errors of the command line."""

from __future__ import annotations

from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from typer.core import TyperCommand, TyperGroup

from ..errors import LossyError


class _CleanErrors:
    """Prints errors of this package as one line, and exits with status 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except LossyError as error:
            Console(stderr=True, soft_wrap=True).print(f"error: {error}", style="red", markup=False, highlight=False)
            raise typer.Exit(2) from None


class CleanGroup(_CleanErrors, TyperGroup):
    """Commands that report errors of this package as one line."""


class CleanCommand(_CleanErrors, TyperCommand):
    """A command that reports errors of this package as one line."""


def limit_threads(threads: int | None) -> None:
    """Let torch use ``threads`` CPU threads; None leaves its own choice."""
    if threads is not None:
        import torch  # takes seconds, and `--help` needs none of it

        torch.set_num_threads(threads)


def progress(out: Console) -> Progress:
    """Return a progress bar with a description, a count and the time that is left."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        console=out,
        transient=True,
        disable=not out.is_terminal,
    )
