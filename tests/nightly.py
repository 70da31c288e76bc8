"""Cases that `make test-all` runs each night, and `make test` does not: each repeats a question on other values."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import product
from typing import Any

import pytest


def nightly(cases: Iterable[Any], but: Collection[Any] = ()) -> list[Any]:
    """Leave all ``cases`` ``but`` some to the night; a tuple is one of several arguments."""

    def marked(case: Any) -> Any:
        return pytest.param(*case if isinstance(case, tuple) else (case,), marks=pytest.mark.nightly)

    return [case if case in but else marked(case) for case in cases]


def spread(**axes: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrize by all combinations; `make test` runs so few of them that each value of each axis comes once."""
    values = [list(axis) for axis in axes.values()]
    longest = max(map(len, values))
    once = {tuple(i % len(axis) for axis in values) for i in range(longest)}
    cases = [
        pytest.param(
            *(axis[i] for axis, i in zip(values, at, strict=True)), marks=() if at in once else pytest.mark.nightly
        )
        for at in product(*(range(len(axis)) for axis in values))
    ]
    return pytest.mark.parametrize(list(axes), cases)
