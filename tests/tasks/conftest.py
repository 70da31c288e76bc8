"""Sandboxes, for the tests that run programs."""

from __future__ import annotations

import pytest

from hf_lossy_assist.tasks.sandbox import Sandbox, isolation

# The clock is generous where nothing waits for it: a busy machine must not fail a test.
SMALL = {"wall_seconds": 60, "memory_mb": 256, "disk_mb": 4}


@pytest.fixture
def needs_isolation() -> None:
    """Skip, with the reason, where programs can't be isolated."""
    if (reason := isolation.unavailable()) is not None:
        pytest.skip(f"programs can't be isolated here: {reason}")


@pytest.fixture
def isolated(needs_isolation) -> Sandbox:
    """A sandbox of small limits."""
    return Sandbox(**SMALL)


@pytest.fixture
def sandbox() -> Sandbox:
    """The same limits, isolated where that can be."""
    return Sandbox(unsafe_no_isolation=isolation.unavailable() is not None, **SMALL)


@pytest.fixture(params=["isolated", "unsafe"])
def each_sandbox(request) -> Sandbox:
    """The same limits with and without isolation."""
    if request.param == "isolated":
        return request.getfixturevalue("isolated")
    with pytest.warns(UserWarning, match="`unsafe_no_isolation` is set"):
        return Sandbox(unsafe_no_isolation=True, **SMALL)


@pytest.fixture
def sandbox_options() -> dict[str, bool]:
    """What lets a task run programs on this machine."""
    return {"unsafe_no_isolation": isolation.unavailable() is not None}
