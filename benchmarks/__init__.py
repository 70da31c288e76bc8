"""Studies of the package: not installed, run in a checkout as ``python -m benchmarks.NAME``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cyclopts import App, Parameter


def application(about: str | None = None, main: Callable[..., Any] | None = None) -> App:
    """Return an application that is ``main``, or whose commands are still to come."""
    app = App(help=about, help_format="plaintext", version_flags=(), default_parameter=Parameter(negative=()))
    if main is not None:
        app.default(main)
    return app
