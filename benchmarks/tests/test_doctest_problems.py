"""``benchmarks.doctest_problems``: problems from docstrings."""

from __future__ import annotations

import json

import pytest

from benchmarks.doctest_problems import app
from benchmarks.tests.running import run
from hf_lossy_assist.tasks.code import PASSED, Code
from hf_lossy_assist.tasks.sandbox import isolation

MODULE = '''
from math import gcd

def shared(a: int, b: int) -> int:
    """Say what divides both.

    >>> shared(12, 18)
    6
    >>> print("no literal")
    no literal
    """
    return gcd(a, b)

def helped(a):
    """Needs its helper.

    >>> helped(1)
    2
    """
    return _helper(a)

def wrong(a):
    """
    >>> wrong(1)
    2
    """
    return a

def called(f):
    """Takes what can't be sent to a sandbox.

    >>> called(lambda: 3)
    3
    """
    return f()

def known(a):
    """
    >>> known(1)
    1
    """
    return a

def _helper(a):
    return a + 1
'''


@pytest.mark.skipif(isolation.unavailable() is not None, reason="programs can't be isolated here")
def test_functions_that_pass_their_own_examples_alone_are_problems(tmp_path):
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "mine.py").write_text(MODULE)
    (tmp_path / "others.jsonl").write_text(json.dumps({"entry_point": "known"}) + "\n")
    out = tmp_path / "problems.jsonl"
    printed = run(app, tmp_path / "sources", "--without", tmp_path / "others.jsonl", "--out", out).output
    assert "1 problems of 5 functions with examples" in printed
    [row] = map(json.loads, out.read_text().splitlines())
    assert row["task_id"] == "mine/shared"
    assert row["prompt"].startswith("from math import gcd\n\n\ndef shared(a, b):\n")
    task = Code(data=str(out))
    [example] = task.examples("test", 9)
    assert task.answer(example, "    return gcd(a, b)\n") == PASSED
    assert task.answer(example, "    return a * b\n") != PASSED
