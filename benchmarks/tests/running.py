"""Running a study's command."""

from __future__ import annotations

from cyclopts import App


def run(app: App, *words: object) -> None:
    """Run a command, which has to succeed."""
    app([*map(str, words)], result_action="return_value", exit_on_error=False, print_error=False)
