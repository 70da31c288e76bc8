"""The terminal: what is printed there, and progress bars."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console as AnyConsole
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Column, Table

from ..errors import printable


class Console(AnyConsole):
    """A terminal that shows texts of models, files and the Hub, and obeys no control characters or markup there."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def figures_table(figures: Mapping[str, object], title: str | None = None) -> Table:
    """Lay out named figures, a line each."""
    table = Table(Column(), Column(justify="right"), title=title, box=SIMPLE_HEAD, show_header=False)
    for name, value in figures.items():
        table.add_row(name, str(value))
    return table


def limit_threads(threads: int | None) -> None:
    if threads is not None:
        import torch  # slow, and `--help` does not need it

        torch.set_num_threads(threads)
