"""The output of ``lossy-assist mine``: a bar while it runs, a table at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ..mining.prompt_results import FAILED, MINED, SKIPPED, PromptResult
from .console import progress

_REPORT_EVERY = 50


class MiningBar:
    """A progress bar with what has been found so far; a line now and then where there is no terminal."""

    def __init__(self, screen: Console) -> None:
        self._screen = screen
        self._bar = progress(screen)
        self._task = self._bar.add_task("mining", start=False, total=None)
        self._counts: Counter[str] = Counter()

    def __enter__(self) -> MiningBar:
        self._bar.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._bar.__exit__(*raised)

    def begin(self, finished: int, total: int) -> None:
        """Show how many prompts there are, and how many earlier runs have finished."""
        # The clock starts here, so that the estimate does not count what earlier runs did.
        self._bar.reset(self._task, completed=finished, total=total)
        if finished:
            self._screen.print(f"{finished} of {total} prompts were finished before")

    def add(self, outcome: PromptResult) -> None:
        """Count one more prompt."""
        counts = self._counts
        counts["prompts"] += 1
        counts[outcome.status] += 1
        counts.update({name: outcome.columns.get(name, 0) for name in ("mismatches", "important", "rows")})
        self._bar.update(self._task, advance=1, description=self._text())
        if not self._screen.is_terminal and counts["prompts"] % _REPORT_EVERY == 0:
            task = self._bar.tasks[self._task]
            left = "" if task.time_remaining is None else f", {task.time_remaining / 60:.0f} minutes left"
            self._screen.print(f"{self._text()}: {task.completed:.0f} of {task.total:.0f} prompts{left}")

    def _text(self) -> str:
        counts = self._counts
        if counts["rows"]:
            return f"mining, {counts['rows']} rows"
        return (
            f"mining, {counts['mismatches']} mismatches, {_share(counts['important'], counts['mismatches'])} important"
        )


def summary_table(kind: str, rows: Iterable[Mapping[str, Any]]) -> Table:
    """Lay out what a folder holds, from its prompts' rows."""
    rows = list(rows)
    statuses = Counter(row["status"] for row in rows)
    totals = Counter()
    for row in rows:
        totals.update({name: row[name] or 0 for name in row if isinstance(row[name], int)})
    table = Table(box=SIMPLE_HEAD, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("prompts", str(len(rows)))
    for status in (MINED, SKIPPED, FAILED):
        table.add_row(status, str(statuses[status]))
    if kind == "ratio":
        table.add_row("rows", str(totals["rows"]))
        return table
    mismatches = totals["mismatches"]
    table.add_row("mismatches", str(mismatches))
    table.add_row("important", _share(totals["important"], mismatches))
    table.add_row("target tokens per mismatch", f"{totals['target_tokens'] / mismatches:.1f}" if mismatches else "")
    if totals["retokenised"]:
        table.add_row("responses tokenised otherwise", str(totals["retokenised"]))
    return table


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "–"
