"""The bundled pair as a server finds it: a folder that names its assistant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.serving.running import served_folder


@pytest.fixture(scope="session")
def make_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that makes a target's folder with some fields, its draft beside it."""

    def make(**fields: Any) -> Path:
        return served_folder(tmp_path_factory.mktemp("served"), **fields)

    return make
