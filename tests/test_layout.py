"""The layout of the tests: where to look for a test."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import hf_lossy_assist

PACKAGE = Path(hf_lossy_assist.__file__).parent
TESTS = Path(__file__).parent


def sources(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*.py")) if path.is_file())


def test_no_test_module_imports_from_another():
    found = [
        f"{path.relative_to(TESTS)}: {line}"
        for path in sources(TESTS)
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.match(r"\s*(from|import) \S*\btest_", line)
    ]
    assert not found


def test_a_room_of_tests_is_a_room_of_the_package():
    """Apart from those that try the whole package in some way; those of the studies lie beside them."""
    of_their_own = {"golden", "sweep", "trial", "hub", "vllm"}
    remaining = {str(path.parent.relative_to(TESTS)) for path in sources(TESTS)} - {"."}
    assert not [room for room in sorted(remaining - of_their_own) if not (PACKAGE / room).is_dir()]
