"""Every example runs."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from hf_lossy_assist import disable, enable

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example(example: Path, capsys: pytest.CaptureFixture[str]):
    disable()  # examples enable for themselves
    try:
        runpy.run_path(str(example), run_name="__main__")
    finally:
        enable()
    assert "drafted tokens kept" in (text := capsys.readouterr().out) or "tokens per round" in text
