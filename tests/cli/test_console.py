"""Progress where the output is no terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from hf_lossy_assist.cli.console import ProgressLines, progress


@pytest.fixture
def lines() -> ProgressLines:
    """Lines into memory, by a clock that stands still."""
    lines = ProgressLines(Console(file=io.StringIO(), width=200))
    lines.now = 0.0
    lines.get_time = lambda: lines.now
    return lines


def test_a_line_now_and_then(lines: ProgressLines):
    with lines:
        for n, _ in enumerate(lines.track(range(12), description="[answering]"), 1):
            lines.now = float(n)
    assert lines.console.file.getvalue().splitlines() == [
        "[answering]: 1 of 12",
        "[answering]: 6 of 12, 0:00:06 left",
        "[answering]: 11 of 12, 0:00:01 left",
    ]


def test_updates_count_too_and_a_total_may_be_unknown(lines: ProgressLines):
    task = lines.add_task("mining", total=None)
    lines.update(task, completed=3, description="mining, 2 mismatches")
    lines.update(task, completed=4)
    assert lines.console.file.getvalue() == "mining, 2 mismatches: 3\n"


def test_lines_are_for_output_that_is_no_terminal():
    assert isinstance(progress(Console(file=io.StringIO())), ProgressLines)
    for other in (Console(force_terminal=True), Console(file=io.StringIO(), quiet=True)):
        assert not isinstance(progress(other), ProgressLines)
