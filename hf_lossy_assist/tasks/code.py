"""Programming problems with tests (HumanEval; Chen et al., 2021)."""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..errors import LossyValueError
from ..values import check_keys
from .sandbox import Sandbox
from .task import Example, Row, Task, from_hub, read_jsonl

PASSED = "passed"
_FIELDS = ("task_id", "prompt", "test", "entry_point", "canonical_solution")
_CHAT = "Complete the following Python function. Give the whole function in one code block.\n```python\n{prompt}```"

# A function ends where something else begins in the first column (stop sequences of HumanEval and of chat models).
_STOP = re.compile(r"\n(?=class\b|def\b|async def\b|@|#|if\b|print\b|assert\b|import\b|from\b|```|<\|)")
_FENCED = re.compile(r"^[ \t]*```[^\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
_CODE_LINE = re.compile(r"(?:def|async def|class|import|from|@)\s*\w")


@dataclass(frozen=True)
class _Problem:
    example: Example
    entry_point: str
    tests: str
    helpers: str


class Code(Task):
    """Python functions to complete; the answer is which of their tests pass.

    Two responses have the same answer if the same tests pass, as in AutoJudge's experiment with programs (section 3.1).
    :func:`program_of` takes the program from the response, and a :class:`~hf_lossy_assist.tasks.sandbox.Sandbox` runs
    it, once per problem and program. There is a test split only, so heads are trained out of fold.

    Parameters
    ----------
    data
        A JSONL file, also gzipped, with ``task_id``, ``prompt``, ``test`` (defines ``check(candidate)``),
        ``entry_point`` and ``canonical_solution``; by default ``openai/openai_humaneval`` on the Hub.
    **sandbox
        Fields of :class:`~hf_lossy_assist.tasks.sandbox.Sandbox`: its limits, and ``unsafe_no_isolation``.

    Raises
    ------
    LossyUnsupportedError
        If programs can't be isolated here and ``unsafe_no_isolation`` is not set.

    Examples
    --------
    >>> import json, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "problems.jsonl"
    >>> _ = path.write_text(json.dumps({
    ...     "task_id": "mine/0", "prompt": "def inc(x):\\n", "entry_point": "inc",
    ...     "canonical_solution": "    return x + 1\\n",
    ...     "test": "def check(f):\\n    assert f(1) == 2\\n    assert f(2) == 3\\n",
    ... }))
    >>> task = Code(data=str(path), unsafe_no_isolation=True)  # not needed where `bwrap` is
    >>> [example] = task.examples("test", 10)
    >>> task.answer(example, "    return 1 + x"), task.answer(example, "    return 4 - 2 * x")
    ('passed', 'failed +')
    """

    name = "code"
    splits = ("test",)
    ends = ("\n```\n",)  # the end of a block; an explanation after it isn't run

    def __init__(self, data: str | None = None, **sandbox: Any) -> None:
        check_keys("the sandbox", [*Sandbox.__dataclass_fields__], sandbox)
        self.sandbox = Sandbox(**sandbox)
        self._data = data
        self._answers: dict[tuple[str, str], str] = {}

    def examples(self, split: str, n: int) -> list[Example]:
        self.check_split(split)
        return [problem.example for problem in self._problems.values()][:n]

    def extract_answer(self, text: str) -> str | None:
        """Return ``text``; only :meth:`answer` knows the problem's tests."""
        return text.strip() or None

    def user_turn(self, example: Example) -> str:
        return _CHAT.format(prompt=example.prompt)

    def answer(self, example: Example, response: str) -> str | None:
        """Return "passed", or "failed" with a mark per test up to the last that passes: "+" if it passes, else "-".

        None stands for an empty response.
        """
        problem = self._problem(example)
        program = program_of(response, example.prompt, problem.entry_point)
        if program is None:
            return None
        if (example.prompt, program) not in self._answers:
            report = self.sandbox.run(program, problem.entry_point, problem.tests, problem.helpers)
            answer = PASSED if report.passed else f"failed {report.marks.rstrip('-')}".rstrip()
            self._answers[example.prompt, program] = answer
        return self._answers[example.prompt, program]

    @cached_property
    def _problems(self) -> dict[str, _Problem]:
        rows = (
            from_hub("openai/openai_humaneval", None, "test") if self._data is None else read_jsonl(self._data, _FIELDS)
        )
        problems: dict[str, _Problem] = {}
        for row in rows:
            if row["prompt"] in problems:
                raise LossyValueError(
                    f"`data` ({self._data}) may have each prompt once, but {row['task_id']} repeats one; leave it out"
                )
            problems[row["prompt"]] = _problem(row)
        return problems

    def _problem(self, example: Example) -> _Problem:
        if example.prompt not in self._problems:
            raise LossyValueError(
                f"`example` has to be a problem of this task, but its prompt is {example.prompt[:80]!r}"
            )
        return self._problems[example.prompt]


def _problem(row: Row) -> _Problem:
    if not row["entry_point"].isidentifier():
        raise LossyValueError(f"`entry_point` of {row['task_id']} has to be a name, but is {row['entry_point']!r}")
    example = Example(row["prompt"], PASSED, row["canonical_solution"])
    tests = f"{row['test']}\n\ncheck({row['entry_point']})\n"
    return _Problem(example, row["entry_point"], tests, row["prompt"] + row["canonical_solution"])


def program_of(response: str, prompt: str, entry_point: str) -> str | None:
    """Return the program in a response to ``prompt``, or None if the response is empty.

    The prompt begins a Python file, up to the signature and docstring of the function ``entry_point``. Fenced blocks
    come first: the last that defines the function, else the longest. Code that defines the function follows the
    prompt's imports and helpers. Other code continues the prompt, up to the function's end.

    Examples
    --------
    >>> program_of("    return x + 1\\n\\nprint(inc(2))", "def inc(x):\\n", "inc")
    'def inc(x):\\n    return x + 1\\n'
    >>> program_of("Sure!\\n```python\\ndef inc(x): return 1 + x\\n```", "import math\\ndef inc(x):\\n", "inc")
    'import math\\ndef inc(x): return 1 + x\\n'
    """
    if not response.strip():
        return None
    definition = re.compile(rf"^(?:async )?def {re.escape(entry_point)}\b", re.MULTILINE)
    blocks = _FENCED.findall(response)
    defining = [block for block in map(textwrap.dedent, blocks) if definition.search(block)]
    code = defining[-1] if defining else max(blocks, key=len, default=response)
    if not definition.search(code):
        dedented = bool(blocks) and not code[:1].isspace()
        return prompt.rstrip("\n") + "\n" + _as_body(textwrap.indent(code, "    ") if dedented else code)
    before = definition.split(prompt)[0]
    return (before if _parses(before) else "") + (code if blocks else _longest_program(code))


def _as_body(code: str) -> str:
    """Cut a continuation where the function ends, and restore a lost indentation."""
    code = _STOP.split(code.lstrip("\n"))[0]
    first, *rest = code.split("\n")
    if any(line[:1].strip() for line in rest):
        return textwrap.indent(code, "    ")
    if len(first) - len(first.lstrip(" ")) < 4 and not first.startswith("\t"):
        # Some tokenizers drop a text's first space, and some models all of them.
        return "\n".join(["    " + first.lstrip(" "), *rest])
    return code


def _longest_program(text: str) -> str:
    """Return the Python in a text with prose before and after it."""
    lines = text.split("\n")
    start = next(i for i, line in enumerate(lines) if _CODE_LINE.match(line))
    lines = lines[start:]
    while lines and not _parses("\n".join(lines)):
        lines.pop()
    return "\n".join(lines) or text


def _parses(code: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # odd escapes in strings run all the same
        try:
            ast.parse(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
    return True
