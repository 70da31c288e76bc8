"""Programming problems with tests (HumanEval; Chen et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..errors import LossyValueError
from .base import Example, Task
from .programs import program_of
from .rows import Row, from_hub, read_jsonl
from .sandbox import Limits, run_tests
from .sandbox.running import require_limits

PASSED, FAILED = "passed", "failed"
_FIELDS = ("task_id", "prompt", "test", "entry_point", "canonical_solution")
_CHAT = "Complete the following Python function. Give the whole function in one code block.\n```python\n{prompt}```"


@dataclass(frozen=True)
class _Problem:
    example: Example
    entry_point: str
    tests: str


class Code(Task):
    """Python functions to complete, whose answer is what their tests say.

    As in AutoJudge's experiment with programs (section 3.1: the answer is "the output from the testing system"), two
    responses have the same answer if both pass or if both fail. The program is taken from the response by
    :func:`~hf_lossy_assist.tasks.programs.program_of` and run by
    :func:`~hf_lossy_assist.tasks.sandbox.run_tests`, which says what is guaranteed and what is not. An answer is kept
    for as long as the task lives: the same program is run once for each problem.

    There is a test split only: heads for such a task are trained out of fold.

    Parameters
    ----------
    data
        A JSONL file, also gzipped, with the fields ``task_id``, ``prompt``, ``test`` (which defines
        ``check(candidate)``), ``entry_point`` and ``canonical_solution``. Without it, ``openai/openai_humaneval`` on
        the Hub.
    **limits
        Fields of :class:`~hf_lossy_assist.tasks.sandbox.Limits`.

    Raises
    ------
    LossyValueError
        If the file is missing or malformed, or a limit is no number > 0.
    LossyUnsupportedError
        Where the operating system can't limit what a program uses.

    Examples
    --------
    >>> import json, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "problems.jsonl"
    >>> _ = path.write_text(json.dumps({
    ...     "task_id": "mine/0", "prompt": "def inc(x):\\n", "entry_point": "inc",
    ...     "canonical_solution": "    return x + 1\\n", "test": "def check(f):\\n    assert f(1) == 2\\n",
    ... }))
    >>> task = Code(data=str(path))
    >>> [example] = task.examples("test", 10)
    >>> task.answer(example, "    return 1 + x"), task.answer(example, "    return x")
    ('passed', 'failed')
    """

    name = "code"
    splits = ("test",)

    def __init__(self, data: str | None = None, **limits: Any) -> None:
        unknown = sorted(set(limits) - set(Limits.__dataclass_fields__))
        if unknown:
            raise LossyValueError(f"`{unknown[0]}` is no limit; there are {list(Limits.__dataclass_fields__)}")
        self.limits = Limits(**limits)
        self._data = data
        self._answers: dict[tuple[str, str], str] = {}
        require_limits()

    def examples(self, split: str, n: int) -> list[Example]:
        self.check_split(split)
        return [problem.example for problem in self._problems.values()][:n]

    def extract_answer(self, text: str) -> str | None:
        """Return ``text``: what it is worth depends on the problem, so only :meth:`answer` can tell."""
        return text.strip() or None

    def equivalent(self, a: str | None, b: str | None) -> bool:
        return a is not None and a == b

    def user_turn(self, example: Example) -> str:
        return _CHAT.format(prompt=example.prompt)

    def answer(self, example: Example, response: str) -> str | None:
        """Return "passed" or "failed", or None where the response is empty."""
        problem = self._problem(example)
        program = program_of(response, example.prompt, problem.entry_point)
        if program is None:
            return None
        if (example.prompt, program) not in self._answers:
            outcome = run_tests(program, f"{problem.tests}\n\ncheck({problem.entry_point})\n", self.limits)
            self._answers[example.prompt, program] = PASSED if outcome.passed else FAILED
        return self._answers[example.prompt, program]

    @cached_property
    def _problems(self) -> dict[str, _Problem]:
        rows = (
            from_hub("openai/openai_humaneval", None, "test") if self._data is None else read_jsonl(self._data, _FIELDS)
        )
        return {row["prompt"]: _problem(row) for row in rows}

    def _problem(self, example: Example) -> _Problem:
        if example.prompt not in self._problems:
            raise LossyValueError(f"`example` is no problem of this task; its prompt is {example.prompt[:80]!r}")
        return self._problems[example.prompt]


def _problem(row: Row) -> _Problem:
    if not row["entry_point"].isidentifier():
        raise LossyValueError(f"`entry_point` of {row['task_id']} has to be a name, but is {row['entry_point']!r}")
    example = Example(row["prompt"], PASSED, row["canonical_solution"])
    return _Problem(example, row["entry_point"], row["test"])
