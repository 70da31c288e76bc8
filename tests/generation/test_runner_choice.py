"""Which way the forwards of a call run, by device, settings and the call's length."""

from __future__ import annotations

import pytest

from hf_lossy_assist.generation.runner_choice import LEAST_TOKENS, MOST_SLOTS, Path, choose_path

LONG = {"tokens": LEAST_TOKENS, "slots": MOST_SLOTS}


@pytest.mark.parametrize(
    ("device", "wanted", "call", "path"),
    [
        ("cuda", None, LONG, Path.GRAPHS),
        ("cuda", None, LONG | {"tokens": LEAST_TOKENS - 1}, Path.DYNAMIC),
        ("cuda", None, LONG | {"slots": MOST_SLOTS + 1}, Path.DYNAMIC),
        ("cuda", None, LONG | {"disabled": True}, Path.DYNAMIC),
        ("cuda", False, LONG, Path.DYNAMIC),
        ("cuda", True, LONG, Path.COMPILED),
        ("cuda", True, {"tokens": 1, "slots": 2 * MOST_SLOTS}, Path.COMPILED),
        ("cuda", None, LONG | {"static": True, "by_itself": True}, Path.COMPILED),
        ("cuda", None, LONG | {"static": True, "by_itself": False}, Path.STATIC),
        ("cuda", False, LONG | {"static": True, "by_itself": True}, Path.STATIC),
        ("cpu", None, LONG, Path.DYNAMIC),
        ("cpu", True, LONG, Path.COMPILED),
        ("cpu", None, LONG | {"static": True}, Path.STATIC),
        ("mps", None, LONG, Path.DYNAMIC),
    ],
)
def test_the_table(device, wanted, call, path):
    assert choose_path(device, wanted, **call) is path
