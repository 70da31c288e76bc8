"""Decoding still decides as recorded, wherever the decision was clear."""

from __future__ import annotations

import json

import pytest

from tests.nightly import nightly

from .cases import all_cases
from .record import RECORD, decisions, draws, is_drawn

KEPT = json.loads(RECORD.read_text(encoding="utf-8"))
CASES = all_cases()


# The command compares all of them, and many more.
@pytest.mark.parametrize("name", nightly(KEPT["cases"], but=[*KEPT["cases"]][::2]))
def test_decisions(name: str):
    case = CASES[name]
    if is_drawn(case) and draws() != KEPT["draws"]:
        pytest.skip("random numbers differ on this platform")
    assert decisions(case) == KEPT["cases"][name]
