"""Studies of the package: not installed, run in a checkout as ``python -m benchmarks.NAME``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cyclopts import App, Parameter


def application(main: Callable[..., Any]) -> App:
    """Return an application that is ``main``."""
    app = App(help_format="plaintext", version_flags=(), default_parameter=Parameter(negative=()))
    app.default(main)
    return app
