"""Word problems with a chain-of-thought answer that can be checked.

A question asks for one person's running total over three to five steps, or for the sum or difference of two people's
totals. A problem's numbers and operations decide its split, so no seed moves a training problem into a test.
"""

from __future__ import annotations

import json
import random
import re
import zlib
from dataclasses import dataclass
from importlib.resources import files

from .task import Example, Task

MAX_TOTAL = 900
# Answers depend on the numbers alone. Every sentence has several wordings, so two models can differ and both be right.
_WORDS = json.loads(files(__package__).joinpath("arithmetic.json").read_text(encoding="utf-8"))
_ANSWER = re.compile(r"answer is\s*(-?[\d,]*\d)")
# Problems fall into 20 buckets.
_BUCKETS = {"test": range(0, 1), "validation": range(1, 2), "train": range(2, 20)}


@dataclass(frozen=True)
class Step:
    """``before op operand = after`` for the person ``who`` (0 or 1)."""

    who: int
    op: str
    operand: int
    before: int
    after: int


@dataclass(frozen=True)
class Problem:
    """The numbers of one problem, without any wording."""

    kind: str
    starts: tuple[int, ...]
    steps: tuple[Step, ...]

    @property
    def totals(self) -> tuple[int, ...]:
        totals = list(self.starts)
        for step in self.steps:
            totals[step.who] = step.after
        return tuple(totals)

    @property
    def answer(self) -> int:
        totals = self.totals
        return {"total": totals[0], "together": sum(totals), "difference": totals[0] - totals[-1]}[self.kind]

    @property
    def split(self) -> str:
        events = ";".join(f"{s.who}{s.op}{s.operand}" for s in self.steps)
        bucket = zlib.crc32(f"{self.kind}|{self.starts}|{events}".encode()) % 20
        return next(split for split, buckets in _BUCKETS.items() if bucket in buckets)


def _draw_step(rng: random.Random, who: int, before: int) -> Step:
    ops = ["+", "+", "-", "-"]
    if before > 99:
        ops += ["-"]
    if 2 <= before <= 200:
        ops += ["x"]
    op = rng.choice(ops)
    if op == "x":
        operand = rng.randint(2, 4)
        after = before * operand
    elif op == "-" and before >= 3:
        operand = rng.randint(2, min(99, before - 1))
        after = before - operand
    else:
        op, operand = "+", rng.randint(2, 99)
        after = before + operand
    return Step(who, op, operand, before, after)


def draw_problem(rng: random.Random) -> Problem:
    """Draw the numbers of one problem: three to five calculations, totals of at most 900."""
    while True:
        kind = rng.choices(("total", "together", "difference"), (0.7, 0.15, 0.15))[0]
        people = 1 if kind == "total" else 2
        n_events = rng.randint(3, 5) if people == 1 else rng.randint(2, 4)
        starts = tuple(rng.randint(5, 90) for _ in range(people))
        totals, steps = list(starts), []
        owners = sorted(rng.randrange(people) for _ in range(n_events))
        for who in owners:
            steps.append(_draw_step(rng, who, totals[who]))
            totals[who] = steps[-1].after
        problem = Problem(kind, starts, tuple(steps))
        if max(totals) <= MAX_TOTAL and 0 < problem.answer <= MAX_TOTAL:
            return problem


def word_problem(problem: Problem, rng: random.Random, *, interleaved: bool = False) -> Example:
    """Put a problem into words: a question, and one of its many equally right solutions.

    ``interleaved`` questions first say how much each of two people has, so only names tell whose event is whose.
    """
    names = rng.sample(_WORDS["names"], 3)
    things, other_things = rng.sample(_WORDS["things"], 2)

    def say(templates: list[str], who: int = 0, **values: int) -> str:
        return rng.choice(templates).format(
            name=names[who], other=names[1], things=things, place=rng.choice(_WORDS["places"]), **values
        )

    question, solution = [], []
    starts = [say(_WORDS["start"], who, n=start) for who, start in enumerate(problem.starts)]
    events = [(step.who, say(_WORDS["events"][step.op], step.who, k=step.operand)) for step in problem.steps]
    if interleaved:
        question = [*starts, *(event for _, event in events)]
    else:
        for who, start in enumerate(starts):
            question += [start, *(event for owner, event in events if owner == who)]
    if rng.random() < 0.35:
        distractor = rng.choice(_WORDS["distractors"]).format(
            other=names[2], other_things=other_things, place=rng.choice(_WORDS["places"]), n=rng.randint(2, 99)
        )
        question.insert(rng.randint(len(problem.starts), len(question)), distractor)
    question.append(say(_WORDS["questions"][problem.kind]))

    for who, start in enumerate(problem.starts):
        solution.append(say(_WORDS["solution_start"], who, n=start))
        for step in (s for s in problem.steps if s.who == who):
            solution.append(say(_WORDS["solution_steps"][step.op], who, a=step.before, k=step.operand, b=step.after))
    if problem.kind != "total":
        a, k = problem.totals
        solution.append(say(_WORDS["solution_combine"][problem.kind], a=a, k=k, b=problem.answer))
    solution.append(_WORDS["closing"].format(answer=problem.answer))
    return Example(
        prompt=f"Question: {' '.join(question)}\nAnswer:", answer=str(problem.answer), solution=" " + " ".join(solution)
    )


class Arithmetic(Task):
    """Seeded word problems of + − × whose last sentence is "The answer is N."

    Parameters
    ----------
    seed
        Different seeds give different problems; the splits stay disjoint across seeds.

    Examples
    --------
    >>> task = Arithmetic()
    >>> example = task.examples("test", 1)[0]
    >>> task.equivalent(task.extract_answer(example.solution), example.answer)
    True
    """

    name = "arithmetic"

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def examples(self, split: str, n: int) -> list[Example]:
        return self.draw(split, n, random.Random(f"{self.seed}/{split}"))

    def draw(self, split: str, n: int, rng: random.Random, *, harder: bool = False) -> list[Example]:
        """Draw problems of ``split``; ``harder`` interleaves the events of two people, for training."""
        self.check_split(split)
        examples: list[Example] = []
        while len(examples) < n:
            problem = draw_problem(rng)
            if problem.split == split:
                examples.append(word_problem(problem, rng, interleaved=harder))
        return examples

    def extract_answer(self, text: str) -> str | None:
        found = _ANSWER.findall(text)
        return str(int(found[-1].replace(",", ""))) if found else None
