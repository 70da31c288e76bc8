"""What tests of static caches share."""

from __future__ import annotations

import pytest

from hf_lossy_assist import errors
from tests.graphs import Recorder, record


@pytest.fixture
def recorder(monkeypatch) -> Recorder:
    errors.warn_once.cache_clear()
    return record(monkeypatch, Recorder())
