"""Every removed name says what to use instead, in its error and on the page of migration."""

from __future__ import annotations

from pathlib import Path

import pytest

from hf_lossy_assist.errors import LossyValueError
from hf_lossy_assist.gone import GONE, check_gone

PAGE = (Path(__file__).parents[1] / "docs" / "migration.md").read_text(encoding="utf-8")
NAMES = [(kind, name) for kind, names in GONE.items() for name in names]


@pytest.mark.parametrize("kind", GONE)
def test_other_names_pass(kind: str):
    check_gone(kind, "no such name")


@pytest.mark.parametrize(("kind", "name"), NAMES)
def test_the_error_and_the_page_name_the_replacement(kind: str, name: str):
    with pytest.raises(LossyValueError) as raised:
        check_gone(kind, name)
    instead = GONE[kind][name]
    assert instead in str(raised.value)
    assert f"| {kind} | `{name}` | {instead} |" in PAGE
