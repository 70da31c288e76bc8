"""The interpreter computes what Python computes, or refuses; and nothing that a program says can do harm."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from hf_lossy_assist.tasks import interpreter
from hf_lossy_assist.tasks.interpreter import Program, ProgramError
from hf_lossy_assist.tasks.programs import INPUTS, draw_problem, write_program

PYTHON = {name: getattr(__import__("builtins"), name) for name in ("sum", "len", "max", "min", "sorted", "list")}


def python(text: str, values: tuple[int, ...]):
    """Return what Python itself makes of a program that is known to be harmless, or None where it fails."""
    names = {"__builtins__": PYTHON}
    exec(text, names)
    function = next(value for name, value in names.items() if name != "__builtins__")
    try:
        return function(list(values))
    except (TypeError, ValueError, NameError, IndexError, ZeroDivisionError):
        return None


def ours(text: str, values: tuple[int, ...]):
    try:
        return Program(text)(list(values))
    except ProgramError:
        return None


def test_the_task_s_programs_return_what_python_returns():
    rng = random.Random(0)
    for _ in range(150):
        text = write_program(draw_problem(rng), rng)
        for values in INPUTS[::5]:
            assert ours(text, values) == python(text, values), text


@pytest.mark.parametrize(
    "body",
    [
        "return a[1] + a[-1]",
        "return a[9]",
        "return a[::-2]",
        "return a[:3] + a[1:]",
        "return 7 % (a[0] - a[0])",
        "return sum(a) if a else -1",
        "return [x for x in a if not x % 2 if x > 1]",
        "return max(a, default=4)",
        "return max(a)",
        "return len(x for x in a)",
        "return 1 < a[0] <= 5 != 3",
        "return a[0] and a[1] or 7",
        "b = c = []\n    b.append(3)\n    return c",
        "b = a\n    b.append(3)\n    return a",
        "x = 9\n    y = [x for x in a]\n    return x",
        "for x in a:\n        pass\n    return x",
        "for x in a:\n        if x > 2:\n            continue\n        return x\n    else:\n        return 99",
        "total = 0\n    for x in a:\n        total = x - total\n    return total",
        "total += 1\n    return total",
        "return",
        "return missing",
        "return sorted(a)[0] == min(a)",
        "return a + 1",
        "return a < 1",
        "return -a[0] * 3 - 2",
    ],
)
def test_what_it_understands_means_the_same_as_in_python(body):
    text = f"def f(a):\n    {body}"
    for values in ((4, 1, 5), (2,), ()):
        found = ours(text, values)
        assert found == python(text, values) or (found is None and "pass" in body), text


@pytest.mark.parametrize(
    "text",
    [
        "import os\ndef f(a):\n    return 1",
        "def f(a):\n    import os\n    return os.getcwd()",
        "def f(a):\n    return __import__('os').system('true')",
        "def f(a):\n    return open('x', 'w')",
        "def f(a):\n    return eval('1')",
        "def f(a):\n    return a.__class__",
        "def f(a):\n    return a.__class__.__subclasses__()",
        "def f(a):\n    return a.append.__self__",
        "def f(a):\n    a.clear()\n    return 1",
        "def f(a):\n    a.append(a)\n    return a",
        "def f(a):\n    a.append('x')\n    return a",
        "def f(a):\n    return [a, a]",
        "def f(a):\n    return 'x' * 9",
        "def f(a):\n    return 2 ** 9",
        "def f(a):\n    return 1 << 9",
        "def f(a):\n    return [0] * 9",
        "def f(a):\n    return f(a)",
        "def f(a):\n    while 1:\n        continue",
        "def f(a):\n    return (lambda: 1)()",
        "def f(a):\n    return sum(a, [])",
        "def f(a):\n    return sum(*a)",
        "def f(a):\n    return max(a, key=print)",
        "def f(a):\n    return max(a, **a)",
        "def f(a):\n    return sorted(a, default=0)",
        "def f(a):\n    a[0] = 1\n    return a",
        "def f(a):\n    x, y = a\n    return x",
        "def f(a):\n    global sum\n    return 1",
        "def f(a):\n    return (yield 1)",
        "def f(a):\n    return (x := 1)",
        "def f(a):\n    return f'{a}'",
        "def f(a):\n    return [1 for x in a for y in a]",
        "def f(a):\n    try:\n        return 1\n    except Exception:\n        return 2",
        "def f(a):\n    def g(b):\n        return 1\n    return 1",
        "def f(a):\n    sum = a\n    return sum(a)",
        "def f(a):\n    return len",
        "async def f(a):\n    return 1",
        "class f:\n    pass",
        "@print\ndef f(a):\n    return 1",
        "def f(a=1):\n    return 1",
        "def f(*a):\n    return 1",
        "def f(a: int):\n    return 1",
        "def f(a, b):\n    return 1",
        "def f():\n    return 1",
        "lambda a: 1",
        "",
        "def f(a)",
        "def f(a):\n    return \x00",
    ],
)
def test_all_else_is_refused(text):
    with pytest.raises(ProgramError):
        Program(text)([1, 2, 3])


@pytest.mark.parametrize(
    "body",
    [
        "for x in a:\n        a.append(x)\n    return a",
        "for x in a:\n        a = a + a\n    return a",
        "for x in a:\n        for y in a:\n            for z in a:\n                for u in a:\n                    1",
        "x = 9\n    for y in a:\n        x = x * x * x * x * x\n    return x",
        f"return {'9' * 900}",
        f"return {'-' * 900}1",
        f"return {'(' * 400}1{')' * 400}",
        f"return {'not ' * 200}a",
        f"return {'[' * 400}{']' * 400}",
        f"return {'a[:]+' * 150}a",
        f"return {'1 if 1 else ' * 70}1",
        f"return 1  # {'x' * 2000}",
    ],
)
def test_no_program_takes_long_or_much(body, monkeypatch):
    steps = []
    spend = interpreter._Execution.spend
    monkeypatch.setattr(interpreter._Execution, "spend", lambda run, n: (steps.append(n), spend(run, n))[1])
    tracemalloc.start()
    try:
        result = ours(f"def f(a):\n    {body}", tuple(range(12)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(steps) <= interpreter.MAX_STEPS + 1
    assert peak < 5e6
    assert type(result) in (int, bool, list, type(None))


def test_a_program_s_input_stays_as_it_is():
    values = [1, 2]
    assert Program("def f(a):\n    a.append(3)\n    return a")(values) == [1, 2, 3]
    assert values == [1, 2]
