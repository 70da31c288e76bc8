"""Settings that can't work are refused by name."""

from __future__ import annotations

import pytest

from hf_lossy_assist.call.config import LossyConfig
from hf_lossy_assist.errors import LossyValueError

parse = LossyConfig.from_fields


@pytest.mark.parametrize(
    ("mode", "name", "values"),
    [
        ("thresholds", "threshold_single", (-0.1, 1.5, "1")),
        ("thresholds", "threshold_acc", (float("nan"), 2)),
        ("near_top", "alpha", (-1, 1.01, None)),
        ("lenience", "factor", (0, 0.0, 1.2, True)),
        ("fsd", "threshold", (-0.1, "js")),
        ("fsd", "divergence", ("JS", "hellinger", None)),
        ("fly", "window", (0, 2.0)),
        ("fly", "theta", (-0.3, None)),
        ("fly", "k", (1, 1.5)),
    ],
)
def test_out_of_range(mode: str, name: str, values: tuple):
    for value in values:
        with pytest.raises(LossyValueError, match=f"`{name}` of the rule '{mode}'.*{value!r}"):
            parse(mode, {name: value})


@pytest.mark.parametrize(
    ("mode", "config", "greedy", "sampling"),
    [
        ("thresholds", {}, True, True),
        ("thresholds", {"threshold_acc": 0.5}, True, False),
        ("thresholds", {"threshold_single": 0.9}, False, False),
        ("near_top", {"alpha": 0}, True, False),
        ("lenience", {"factor": 1}, True, True),
        ("lenience", {}, False, False),
        ("fsd", {"threshold": 0}, True, True),
        ("fly", {"theta": 2}, True, True),
        ("fly", {}, False, False),
    ],
)
def test_what_is_said_to_be_lossless(mode: str, config: dict, greedy: bool, sampling: bool):
    rule = parse(mode, config).rule
    assert (rule.is_lossless(do_sample=False), rule.is_lossless(do_sample=True)) == (greedy, sampling)
