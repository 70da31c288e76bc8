"""The terminal: what is printed there, and progress bars."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from rich.console import Console as AnyConsole
from rich.console import ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment

from ..errors import printable


class Console(AnyConsole):
    """A terminal that shows texts of models, files and the Hub, and obeys no control characters or markup there."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def limit_threads(threads: int | None) -> None:
    if threads is not None:
        import torch  # slow, and `--help` does not need it

        torch.set_num_threads(threads)


class ProgressLines(Progress):
    """Progress as a line on standard error every few seconds, for output that is not a terminal."""

    EVERY = 5.0  # seconds

    def __init__(self, out: Console | None = None) -> None:
        super().__init__(console=out or Console(stderr=True, soft_wrap=True), disable=True, auto_refresh=False)
        self._printed: float | None = None

    def update(self, task_id: TaskID, **changes: Any) -> None:
        super().update(task_id, **changes)
        self._report(task_id)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
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
    """Return a progress bar, lines if there is no terminal, or neither if the console is quiet."""
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
