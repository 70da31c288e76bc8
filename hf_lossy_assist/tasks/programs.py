"""Short Python functions from descriptions, checked by running them.

A description says which part of a list counts, which of its numbers, what becomes of each, and what is returned. The
same function can be written in thousands of ways. Names, order, comments, loops or comprehensions are free where they
are first written, and forced from then on. Most programs begin with an example of a list, which may be any: a digit
there says nothing, and the same digit two lines later is the answer.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass

from . import program_wordings as w
from .interpreter import Program, ProgramError
from .task import Example, SeededTask

# Of 20 buckets of problems, one is the test split, one the validation split, the rest training.
_BUCKETS = {"test": range(0, 1), "validation": range(1, 2), "train": range(2, 20)}


def _inputs() -> tuple[tuple[int, ...], ...]:
    """Return lists that tell programs apart: of one number each, for bounds; mixed ones, for order and places."""
    rng = random.Random(0)
    mixed = [tuple(rng.randint(-3, 14) for _ in range(length)) for length in (0, 1, 2, 3, 5, 8, 9, 11, 12, 13)]
    return tuple((number,) * 6 for number in range(-1, 11)) + tuple(mixed)


INPUTS = _inputs()


@dataclass(frozen=True)
class Part:
    """One part of a description: what is done, and with which number (0 where it has none)."""

    kind: str
    k: int = 0

    def said(self, wordings: dict[str, tuple[str, ...]], rng: random.Random, **names: str) -> str:
        """Return the part in one of its wordings."""
        return rng.choice(wordings[self.kind]).format(k=self.k, **names)


@dataclass(frozen=True)
class ProgramProblem:
    """What a function computes, without any wording."""

    part: Part
    tests: tuple[Part, ...]
    change: Part
    result: Part

    @property
    def split(self) -> str:
        """The split that the problem belongs to."""
        bucket = zlib.crc32(repr((self.part, sorted(map(repr, self.tests)), self.change, self.result)).encode()) % 20
        return next(split for split, buckets in _BUCKETS.items() if bucket in buckets)

    def solve(self, values: tuple[int, ...]) -> int | list[int]:
        """Return what the function returns for ``values``: the reference, written without any of the wordings."""
        part = _PARTS[self.part.kind](values, self.part.k)
        kept = [v for v in part if all(_TESTS[test.kind](v, test.k) for test in self.tests)]
        return _RESULTS[self.result.kind]([_CHANGES[self.change.kind](v, self.change.k) for v in kept])


_PARTS = {
    "all": lambda a, k: a,
    "skip": lambda a, k: a[k:],
    "first": lambda a, k: a[:k],
    "last": lambda a, k: a[-k:],
    "cut": lambda a, k: a[:-k],
    "second": lambda a, k: a[::2],
}
_TESTS = {
    "above": lambda v, k: v > k,
    "least": lambda v, k: v >= k,
    "below": lambda v, k: v < k,
    "most": lambda v, k: v <= k,
    "even": lambda v, k: v % 2 == 0,
    "odd": lambda v, k: v % 2 == 1,
    "multiple": lambda v, k: v % k == 0,
    "other": lambda v, k: v != k,
}
_CHANGES = {
    "none": lambda v, k: v,
    "add": lambda v, k: v + k,
    "subtract": lambda v, k: v - k,
    "times": lambda v, k: v * k,
    "square": lambda v, k: v * v,
    "from": lambda v, k: k - v,
}
_RESULTS = {
    "sum": sum,
    "count": len,
    "largest": lambda b: max(b, default=0),
    "smallest": lambda b: min(b, default=0),
    "list": list,
    "sorted": sorted,
    "reversed": lambda b: b[::-1],
    "first": lambda b: b[0] if b else 0,
    "last": lambda b: b[-1] if b else 0,
}
# Two of a kind: of both, one says nothing that the other does not.
_ALIKE = {"least": "above", "most": "below", "odd": "even"}
# One digit each.
_NUMBERS = {
    "skip": (1, 4), "first": (2, 5), "last": (2, 5), "cut": (1, 4),
    "above": (2, 8), "least": (2, 8), "below": (2, 8), "most": (2, 8), "multiple": (3, 7), "other": (2, 8),
    "add": (2, 9), "subtract": (2, 9), "times": (2, 9), "from": (2, 9),
}  # fmt: skip


def _draw_part(rng: random.Random, kind: str) -> Part:
    return Part(kind, rng.randint(*_NUMBERS[kind])) if kind in _NUMBERS else Part(kind)


def draw_problem(rng: random.Random) -> ProgramProblem:
    """Draw what a function computes: one or two tests, and often a part of the list and a change."""
    part = "all" if rng.random() < 0.4 else rng.choice(sorted(_PARTS.keys() - {"all"}))
    result = rng.choice(sorted(_RESULTS))
    change = "none" if result == "count" or rng.random() < 0.35 else rng.choice(sorted(_CHANGES.keys() - {"none"}))
    while True:
        tests = tuple(_draw_part(rng, kind) for kind in rng.sample(sorted(_TESTS), rng.choice((1, 1, 2))))
        kinds = {_ALIKE.get(test.kind, test.kind) for test in tests}
        if len(kinds) == len(tests) and sum(all(_TESTS[t.kind](v, t.k) for t in tests) for v in range(12)) > 2:
            return ProgramProblem(_draw_part(rng, part), tests, _draw_part(rng, change), Part(result))


def describe(problem: ProgramProblem, rng: random.Random) -> str:
    """Put a problem into words."""
    tests = rng.choice((" and ", ", ")).join(test.said(w.SAID_TESTS, rng) for test in problem.tests)
    sentences = (
        problem.part.said(w.SAID_PARTS, rng),
        rng.choice(w.SAID_SELECTION).format(tests=tests),
        problem.change.said(w.SAID_CHANGES, rng),
        problem.result.said(w.SAID_RESULTS, rng),
    )
    return " ".join(sentence for sentence in sentences if sentence)


def write_program(problem: ProgramProblem, rng: random.Random) -> str:
    """Return one of a problem's many programs."""
    name, a, v = rng.choice(w.FUNCTIONS), rng.choice(w.LISTS), rng.choice(w.ELEMENTS)
    change, part = problem.change.said(w.CHANGES, rng, v=v), problem.part.said(w.PARTS, rng, a=a)
    tests = [test.said(w.TESTS, rng, v=v) for test in rng.sample(problem.tests, len(problem.tests))]
    kind = problem.result.kind
    lines = []
    if rng.random() < 0.8:
        numbers = ", ".join(str(rng.randint(0, 9)) for _ in range(rng.randint(3, 7)))
        lines.append("# " + rng.choice(w.EXAMPLES).format(numbers=numbers))
    if rng.random() < 0.4:
        said = rng.choice(problem.tests).said(w.SAID_TESTS, rng)
        lines.append("# " + rng.choice(w.COMMENTS).format(test=said))
    form = rng.choice(("direct", "named", "loop", "append"))
    if form == "direct" and kind in w.DIRECT_RESULTS:
        loop = f"for {v} in {part} if {' and '.join(tests)}"
        lines.append("return " + rng.choice(w.DIRECT_RESULTS[kind]).format(g=f"{change} {loop}", loop=loop))
    elif form == "loop" and kind in w.LOOPS:
        t = rng.choice(w.TOTALS)
        before, each, after = (line.format(t=t, e=change) for line in rng.choice(w.LOOPS[kind]))
        lines += [before] if before else []
        lines += [*_loop(v, part, tests, each, problem, rng), f"return {after}"]
    else:
        b = rng.choice(w.KEPT)
        if form in ("loop", "append"):
            lines += [f"{b} = []", *_loop(v, part, tests, f"{b}.append({change})", problem, rng)]
        else:
            lines.append(f"{b} = [{change} for {v} in {part} if {' and '.join(tests)}]")
        lines.append("return " + rng.choice(w.RESULTS[kind]).format(b=b))
    return "\n    ".join([f"def {name}({a}):", *lines])


def _loop(v: str, part: str, tests: list[str], each: str, problem: ProgramProblem, rng: random.Random) -> list[str]:
    """Return the lines of a loop that does ``each`` with what passes the tests."""
    lines = [f"for {v} in {part}:"]
    if len(tests) == 1 and problem.tests[0].kind in w.OPPOSITES and rng.random() < 0.25:
        opposite = Part(w.OPPOSITES[problem.tests[0].kind], problem.tests[0].k).said(w.TESTS, rng, v=v)
        return [*lines, f"    if {opposite}:", "        continue", f"    {each}"]
    if len(tests) == 2 and rng.random() < 0.4:
        return [*lines, f"    if {tests[0]}:", f"        if {tests[1]}:", f"            {each}"]
    return [*lines, f"    if {' and '.join(tests)}:", f"        {each}"]


class Programs(SeededTask):
    """Seeded descriptions of functions of a list, whose answer is what the function returns for a number of lists.

    The program is run by :class:`~hf_lossy_assist.tasks.interpreter.Program`, which can do nothing but compute.

    Parameters
    ----------
    seed
        Every seed gives other problems; the splits stay disjoint across seeds.

    Examples
    --------
    >>> task = Programs()
    >>> example = task.examples("test", 1)[0]
    >>> task.correct(example, example.solution)
    True
    >>> task.extract_answer("def f(a):\\n    return len(a)") == task.extract_answer("def g(b):\\n    return 0 + len(b)")
    True
    """

    name = "programs"
    max_new_tokens = 120

    def draw_problem(self, rng: random.Random) -> ProgramProblem:
        return draw_problem(rng)

    def word(self, problem: ProgramProblem, rng: random.Random) -> Example:
        answer = " ".join(_written(problem.solve(values)) for values in INPUTS)
        return Example(f"Task: {describe(problem, rng)}\n", answer, write_program(problem, rng))

    def extract_answer(self, text: str) -> str | None:
        """Return what the program returns for each of the lists, or None where the text is no such program."""
        try:
            program = Program(text.strip())
        except ProgramError:
            return None
        return " ".join(_result(program, values) for values in INPUTS)


def _result(program: Program, values: tuple[int, ...]) -> str:
    try:
        return _written(program(list(values)))
    except ProgramError:
        return "error"


def _written(value: int | list[int] | None) -> str:
    return str(value).replace(" ", "")
