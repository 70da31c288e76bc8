"""The code task: problems, programs out of responses, answers."""

from __future__ import annotations

import gzip
import json
import sys
import warnings

import pytest

from hf_lossy_assist import LossyUnsupportedError, LossyValueError, tasks
from hf_lossy_assist.tasks import Example
from hf_lossy_assist.tasks.code import Code, program_of
from hf_lossy_assist.tasks.sandbox import ProgramReport, Sandbox, isolation

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs a Unix system"),
    pytest.mark.filterwarnings("ignore:`unsafe_no_isolation` is set"),
]

MEAN = {
    "task_id": "mine/0",
    "prompt": 'from typing import List\n\n\ndef mean(xs: List[float]) -> float:\n    """Return the mean of xs."""\n',
    "entry_point": "mean",
    "canonical_solution": "    total = 0\n    for x in xs:\n        total += x\n    return total / len(xs)\n",
    "test": "def check(candidate):\n    assert candidate([1, 2, 3]) == 2\n    assert candidate([5]) == 5\n",
}
DECODE = {
    "task_id": "mine/1",
    "prompt": 'def encode(s):\n    return s[::-1]\n\n\ndef decode(s):\n    """Undo encode."""\n',
    "entry_point": "decode",
    "canonical_solution": "    return s[::-1]\n",
    "test": "def check(candidate):\n    assert candidate(encode('abc')) == 'abc'\n",
}
PROMPT, SOLUTION = MEAN["prompt"], MEAN["canonical_solution"]
WHOLE = PROMPT + SOLUTION


@pytest.fixture
def task(tmp_path, sandbox_options):
    path = tmp_path / "problems.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (MEAN, DECODE)))
    return Code(str(path), cpu_seconds=1, wall_seconds=60, **sandbox_options)


RIGHT = {
    "continuation": SOLUTION,
    "it goes on": SOLUTION + "\n\nprint(mean([1]))\n\ndef unfinished(",
    "it goes on with a test": SOLUTION + "\nassert mean([1]) == 2",
    "it goes on with a comment": SOLUTION + "\n# Now the next problem\nThis is no Python",
    "a space was lost": SOLUTION[1:],
    "the indentation was lost": SOLUTION.lstrip(),
    "one line": "    return sum(xs) / len(xs)",
    "one line without indentation": "return sum(xs) / len(xs)",
    "a blank line first": "\n" + SOLUTION,
    "fenced": f"Sure!\n```python\n{WHOLE}```\nThis adds up all numbers.",
    "fenced without a language": f"```\n{WHOLE}\n```",
    "fenced without an end": f"Here it is:\n```python\n{WHOLE}",
    "fenced without the imports": "```python\n" + WHOLE.split("\n\n\n")[1] + "```",
    "fenced body": f"```python\n{SOLUTION}```",
    "fenced body without indentation": "```python\n" + "total = sum(xs)\nif xs:\n    return total / len(xs)\n" + "```",
    "an example after it": f"```python\n{WHOLE}```\nUse it so:\n```python\nprint(mean([1, 2]))\n```",
    "a wrong one before it": f"```python\ndef mean(xs):\n    return 0\n```\nNo, better:\n```python\n{WHOLE}```",
    "indented fence": "1. So:\n\n   ```python\n   def mean(xs):\n       return sum(xs) / len(xs)\n   ```",
    "whole": WHOLE,
    "whole with prose": f"Sure! Here is the function.\n\n{WHOLE}\nThis works, since it's a mean.\n",
    "whole with a helper": "def add(xs):\n    return sum(xs)\n\ndef mean(xs):\n    return add(xs) / len(xs)\n",
    "async helper and a class": "class A:\n    n = 1\n\ndef mean(xs):\n    return sum(xs) / len(xs) * A.n\n",
    "odd escapes": "    '\\d'\n" + SOLUTION,
}
WRONG = {
    "another value": "    return 0\n",
    "no Python": "I can't help with that.",
    "prose that names it": "def mean is a function that",
    "too early": "    import os\n    os._exit(0)\n",
    "never": "    while True:\n        pass\n",
    "another function": "```python\ndef median(xs):\n    return 2\n```",
    "brackets without end": "    return " + "(" * 5000,
    "null byte": "    return '\0'\n",
}


@pytest.mark.parametrize("response", RIGHT.values(), ids=RIGHT.keys())
def test_a_right_response_gives_the_program_however_it_is_written(response):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # none may come of looking at a program
        program = program_of(response, PROMPT, "mean")
        warnings.simplefilter("ignore")
        names: dict = {}
        exec(program, names)
    assert (names["mean"]([1, 2, 3]), names["mean"]([5])) == (2, 5)


@pytest.mark.parametrize("response", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_response_fails(task, response):
    [example] = task.examples("test", 1)
    assert task.answer(example, response) == "failed"


def test_the_reference_solutions_are_correct(task):
    examples = task.examples("test", 10)
    assert [example.prompt for example in examples] == [MEAN["prompt"], DECODE["prompt"]]
    assert all(task.correct(example, example.solution) for example in examples)
    assert f"```python\n{PROMPT}```" in task.user_turn(examples[0])
    # What a prompt defines before its function is kept.
    assert task.correct(examples[1], "```python\ndef decode(s):\n    return ''.join(reversed(s))\n```")


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (SOLUTION, "passed"),
        ("    return 2\n", "failed +"),
        ("    return 5\n", "failed -+"),
        ("    return 0\n", "failed"),
        ("    return xs[1]\n", "failed +"),  # the second test raises an error
        ("    return 2 if xs[1:] else exit()\n", "failed +"),
        ("    return 2 if xs[1:] else __import__('os')._exit(0)\n", "failed +"),  # it is not reached
        (" \n", None),
    ],
)
def test_the_answer_is_which_tests_pass(task, body, answer):
    [example] = task.examples("test", 1)
    assert task.answer(example, body) == answer
    assert task.keeps_answer(example, "    return 2\n", body) == (answer == "failed +")


def test_a_program_runs_once_for_each_problem(task, monkeypatch):
    runs = []

    def run(sandbox, program, entry_point, tests, helpers):
        runs.append((sandbox, program, entry_point, tests, helpers))
        return ProgramReport(True, "+", "passed")

    monkeypatch.setattr(Sandbox, "run", run)
    first, second = task.examples("test", 2)
    for example in (first, first, second, first):
        task.answer(example, "    return 1\n\nprint(2)")
        task.answer(example, "    return 1\n")  # the same program once it is cut
    assert len(runs) == 2
    assert all(sandbox is task.sandbox for sandbox, *_ in runs)
    assert runs[0][2:] == ("mean", MEAN["test"] + "\n\ncheck(mean)\n", WHOLE)


def test_the_sandbox_has_options(tmp_path, sandbox_options):
    path = tmp_path / "problems.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.write(json.dumps(MEAN))
    task = Code(str(path), cpu_seconds=1, memory_mb=64, **sandbox_options)
    assert task.sandbox == Sandbox(cpu_seconds=1, memory_mb=64, **sandbox_options)
    assert len(task.examples("test", 9)) == 1
    for wrong in ({"cpu": 1}, {"cpu_seconds": 0}):
        with pytest.raises(LossyValueError, match=next(iter(wrong))):
            Code(str(path), **wrong)


def test_without_isolation_the_task_is_refused_at_once_unless_asked_for_by_name(monkeypatch):
    monkeypatch.setattr(isolation, "unavailable", lambda: "no bwrap")
    with pytest.raises(LossyUnsupportedError, match="can't be isolated here: no bwrap"):
        Code("problems.jsonl")
    with pytest.warns(UserWarning, match="`unsafe_no_isolation` is set"):
        assert tasks.load("code", "problems.jsonl", unsafe_no_isolation="true").sandbox.unsafe_no_isolation


@pytest.mark.parametrize(
    ("changes", "prompt", "named"),
    [
        ({"entry_point": "mean; import os"}, PROMPT, "`entry_point`"),
        ({"test": None}, PROMPT, "'test'"),
        ({"prompt": DECODE["prompt"]}, PROMPT, "mine/0 repeats one"),
        ({}, "def f", "`example`"),
    ],
)
def test_bad_rows_and_foreign_examples_are_refused(tmp_path, sandbox_options, changes, prompt, named):
    path = tmp_path / "problems.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (DECODE, MEAN | changes)))
    with pytest.raises(LossyValueError, match=named):
        Code(str(path), **sandbox_options).answer(Example(prompt, "passed"), "    pass")
