"""Progress bars and one-line errors of the command line."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import timedelta
from typing import Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from typer.core import TyperCommand, TyperGroup

from ..errors import LossyError

OTHER_NAMES = {
    "assistant_model": "--assistant",
    "data": "--task-data",
    "heads": "--head",
    "lossy_config": "--config",
    "lossy_head": "--head",
    "lossy_mode": "--mode",
    "prompt_lookup_num_tokens": "--prompt-lookup",
    "spec": "--task",
}
"""By the name of an argument in the package, the option that gives it, where that has another name."""
_NO_OPTIONS = ("seed", "dtype")  # of a `lossy_config`, or of a head


class _CleanErrors:
    """Prints errors of this package as one line, in the command's own terms, and exits with status 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except LossyError as error:
            there = {option for parameter in self.params for option in parameter.opts}
            message = re.sub(r"`(\w+)`", lambda name: _option(name, there), str(error))
            Console(stderr=True, soft_wrap=True).print(f"error: {message}", style="red", markup=False, highlight=False)
            raise typer.Exit(2) from None


def _option(name: re.Match[str], there: Collection[str]) -> str:
    """Return the option that gives an argument, in backticks, or the argument as it is where there is none."""
    options = (OTHER_NAMES.get(name[1]), f"--{name[1].replace('_', '-')}")
    found = next((option for option in options if option in there and name[1] not in _NO_OPTIONS), name[1])
    return f"`{found}`"


class CleanGroup(_CleanErrors, TyperGroup):
    """Commands that report errors of this package as one line."""


class CleanCommand(_CleanErrors, TyperCommand):
    """A command that reports errors of this package as one line."""


def limit_threads(threads: int | None) -> None:
    """Let torch use ``threads`` CPU threads; None leaves its own choice."""
    if threads is not None:
        import torch  # takes seconds, and `--help` needs none of it

        torch.set_num_threads(threads)


class ProgressLines(Progress):
    """Progress as a line on the standard error every few seconds, where the output is no terminal."""

    EVERY = 5.0
    """Seconds."""

    def __init__(self, out: Console | None = None) -> None:
        super().__init__(console=out or Console(stderr=True, soft_wrap=True), disable=True, auto_refresh=False)
        self._printed: float | None = None

    def update(self, task_id: TaskID, **changes: Any) -> None:
        """Change a task, and print how far it is if the time has come."""
        super().update(task_id, **changes)
        self._report(task_id)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        """Move a task on, and print how far it is if the time has come."""
        super().advance(task_id, advance)
        self._report(task_id)

    def _report(self, task_id: TaskID) -> None:
        now = self.get_time()
        if self._printed is not None and now - self._printed < self.EVERY:
            return
        self._printed, task = now, self._tasks[task_id]
        total = "" if task.total is None else f" of {task.total:.0f}"
        left = "" if not task.time_remaining else f", {timedelta(seconds=round(task.time_remaining))} left"
        line = f"{task.description}: {task.completed:.0f}{total}{left}"
        self.console.print(line, markup=False, highlight=False)


def progress(out: Console) -> Progress:
    """Return a progress bar with a description, a count and the time that is left; lines where there is no terminal.

    A quiet console has neither.
    """
    if not out.is_terminal and not out.quiet:
        return ProgressLines()
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        console=out,
        transient=True,
        disable=out.quiet,
    )
