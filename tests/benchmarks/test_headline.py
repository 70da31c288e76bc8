"""README's picture."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.headline import MODES, app
from tests.benchmarks.running import README, run


def texts(picture: Path) -> list[str]:
    """Return what is written in a picture, but for the axis's numbers, which are matplotlib's choice."""
    found = re.findall(r"<text[^>]*>([^<]+)</text>", picture.read_text(encoding="utf-8"))
    return [text for text in found if not text.isdigit()]


def test_it_says_what_the_rows_say(tmp_path: Path):
    run(app, "--out", tmp_path / "speed.svg")
    shown = texts(tmp_path / "speed.svg")
    assert set(MODES.values()) <= set(shown)
    assert sum(bool(re.fullmatch(r"\d+\.\d", text)) for text in shown) == len(MODES)
    assert texts(README.parents[1] / "docs" / "speed.svg") == shown
