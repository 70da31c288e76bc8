"""Progress bars, one-line errors, and panels of options for commands."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from errno import EPIPE
from types import MappingProxyType
from typing import Any

import typer
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
from typer.core import TyperCommand, TyperGroup

from ..errors import LossyError, LossyValueError, brief, printable
from ..store.folder import claimed, this_process

OTHER_NAMES = {
    "assistant_model": ("--assistant",),
    "draft": ("--assistant",),
    "heads": ("--head",),
    "lossy_config": ("--mode", "--modes"),
    "lossy_head": ("--head",),
    "lossy_mode": ("--mode", "--modes"),
    "modes": ("--modes", "--mode"),
    "name": ("--pair",),
    "prompt_lookup_num_tokens": ("--set prompt_lookup=N",),
    "ratio": ("--lambda",),
    "split=test": ("--set split=test",),
    "split=train": ("--set split=train",),
    "unsafe_no_isolation": ("--set task.unsafe_no_isolation=true",),
}
"""Options by the argument that they set, where their names differ."""
_NO_OPTIONS = ("seed", "dtype")  # keys of a `lossy_config` or a head


class Console(AnyConsole):
    """A terminal that shows texts of models, files and the Hub, and obeys no control characters or markup there."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


class _CleanErrors:
    """Prints errors of this package and of the system as one line that names options, and exits with status 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with self._claimed(ctx):
                return super().invoke(ctx)
        except (LossyError, OSError) as error:
            if getattr(error, "errno", None) == EPIPE:  # a reader that has had enough
                raise
            there = {option for parameter in self.params for option in parameter.opts}
            message = re.sub(r"`([\w.=]+)`", lambda name: _option(name, there), str(error))
            Console(stderr=True, soft_wrap=True).print(f"error: {message}", style="red", markup=False, highlight=False)
            raise typer.Exit(2) from None

    def _claimed(self, ctx: Any) -> AbstractContextManager[Any]:
        """Keep other runs from the folder that the command writes to, and begin with whether it can be written to."""
        out, option = ctx.params.get("out"), next((each for each in self.params if each.name == "out"), None)
        if out is None or option.metavar == "FILE":
            return nullcontext()
        return claimed(out, this_process())


def _option(name: re.Match[str], there: Collection[str]) -> str:
    """Return an argument's option in backticks, or the argument if it has none."""
    options = (*OTHER_NAMES.get(name[1], ()), f"--{name[1].replace('_', '-')}")
    found = next((option for option in options if option.split()[0] in there and name[1] not in _NO_OPTIONS), name[1])
    return f"`{found}`"


class CleanGroup(_CleanErrors, TyperGroup):
    """Commands with one-line errors."""


class CleanCommand(_CleanErrors, TyperCommand):
    """A command with one-line errors, whose help has panels of options, and what ``--set`` takes."""

    settings: Mapping[str, str] = MappingProxyType({})

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options by their panels."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                panels.setdefault(getattr(parameter, "rich_help_panel", None) or "Options", []).append(record)
        for name, records in panels.items():
            with formatter.section(name):
                formatter.write_dl(records)
        if self.settings:
            with formatter.section("Settings, as in --set KEY=VALUE"):
                formatter.write_dl([*self.settings.items()])

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if wrong := [argument for argument in args if argument != argument.encode(errors="replace").decode()]:
            raise LossyValueError(f"options have to be text in UTF-8, but {brief(wrong[0])} is not")
        return super().parse_args(ctx, args)


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
