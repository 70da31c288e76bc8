"""Word problems with a chain-of-thought answer that can be checked.

A question asks for one person's running total over three to five steps, or for the sum or difference of two people's
totals. A problem's numbers and operations decide its split, so no seed moves a training problem into a test.
"""

from __future__ import annotations

import random
import re
import zlib
from dataclasses import dataclass

from .task import Example, Task

MAX_TOTAL = 900
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
    names = rng.sample(_NAMES, 3)
    things, other_things = rng.sample(_THINGS, 2)

    def say(templates: tuple[str, ...], who: int = 0, **values: int) -> str:
        return rng.choice(templates).format(
            name=names[who], other=names[1], things=things, place=rng.choice(_PLACES), **values
        )

    question, solution = [], []
    starts = [say(_START, who, n=start) for who, start in enumerate(problem.starts)]
    events = [(step.who, say(_EVENTS[step.op], step.who, k=step.operand)) for step in problem.steps]
    if interleaved:
        question = [*starts, *(event for _, event in events)]
    else:
        for who, start in enumerate(starts):
            question += [start, *(event for owner, event in events if owner == who)]
    if rng.random() < 0.35:
        distractor = rng.choice(_DISTRACTORS).format(
            other=names[2], other_things=other_things, place=rng.choice(_PLACES), n=rng.randint(2, 99)
        )
        question.insert(rng.randint(len(problem.starts), len(question)), distractor)
    question.append(say(_QUESTIONS[problem.kind]))

    for who, start in enumerate(problem.starts):
        solution.append(say(_SOLUTION_START, who, n=start))
        for step in (s for s in problem.steps if s.who == who):
            solution.append(say(_SOLUTION_STEPS[step.op], who, a=step.before, k=step.operand, b=step.after))
    if problem.kind != "total":
        a, k = problem.totals
        solution.append(say(_SOLUTION_COMBINE[problem.kind], a=a, k=k, b=problem.answer))
    solution.append(_CLOSING.format(answer=problem.answer))
    return Example(
        prompt=f"Question: {' '.join(question)}\nAnswer:",
        answer=str(problem.answer),
        solution=" " + " ".join(solution),
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


# Answers depend on the numbers alone. Every sentence has several wordings, so two models can differ and both be right.
_NAMES = (
    "Ada Ben Cora Dan Eva Finn Gina Hugo Ida Jack Kim Leo Mia Noah Olga Paul Quinn Rosa Sam Tara Uma Vera "
    "Will Xena Yara Zoe Amir Bela Chen Dora Emil Fay Gus Hana Ivan Jade Karl Lily Max Nora Omar Pia Ravi "
    "Sara Tom Ugo Vic Wendy"
).split()

_THINGS = (
    "apples books coins cards shells stamps pens beads cups plates stones marbles stickers flowers pears "
    "plums nuts eggs cakes tickets boxes buttons keys lamps hats socks ropes bricks tiles nails screws "
    "toys balls kites drums maps letters photos candles spoons forks bottles jars bags ribbons badges "
    "seeds leaves"
).split()

_PLACES = ("at home", "in the shop", "at school", "in the garden", "by the lake", "in the yard", "at work", "in town")

_START = (
    "{name} has {n} {things} {place}.",
    "{name} starts with {n} {things}.",
    "At first, {name} owns {n} {things}.",
    "There are {n} {things} that belong to {name}.",
    "{name} keeps {n} {things} {place}.",
    "In the morning {name} counts {n} {things}.",
)

_EVENTS = {
    "+": (
        "{name} buys {k} more.",
        "A friend gives {name} {k} more.",
        "{name} finds {k} {things} {place}.",
        "Then {name} gets {k} {things} as a gift.",
        "{k} more arrive for {name}.",
        "{name} wins {k} in a game.",
        "Later {name} collects {k} {things}.",
    ),
    "-": (
        "{name} gives away {k}.",
        "{name} loses {k} {things} {place}.",
        "Then {name} sells {k}.",
        "{k} of the {things} of {name} break.",
        "{name} throws away {k}.",
        "A thief takes {k} from {name}.",
        "Later {name} hands {k} {things} to a friend.",
    ),
    "x": (
        "Then the {things} of {name} become {k} times as many.",
        "{name} trades them and now has {k} times as many {things}.",
        "A rich uncle makes it {k} times as many for {name}.",
        "With luck, {name} ends up with {k} times that number.",
        "{name} swaps each one for {k} {things}.",
    ),
}

_DISTRACTORS = (
    "{other} has {n} {other_things}.",
    "There are also {n} {other_things} {place}.",
    "{other} is {n} years old.",
    "The shop sells {other_things} for {n} cents.",
    "It takes {n} minutes to walk there.",
)

_QUESTIONS = {
    "total": (
        "How many {things} does {name} have now?",
        "How many {things} are left with {name} in the end?",
        "What is the number of {things} of {name} now?",
    ),
    "together": (
        "How many {things} do {name} and {other} have together?",
        "How many {things} is that in all for {name} and {other}?",
    ),
    "difference": (
        "How many more {things} does {name} have than {other}?",
        "By how many {things} is {name} ahead of {other}?",
    ),
}

_SOLUTION_START = (
    "{name} starts with {n}.",
    "First, {name} has {n} {things}.",
    "We begin with {n} for {name}.",
    "At the start there are {n} {things}.",
)

_SOLUTION_STEPS = {
    "+": (
        "Adding {k} gives {a} + {k} = {b}.",
        "Then {name} gets {k} more, so {a} + {k} = {b}.",
        "After that, {a} + {k} = {b} {things}.",
        "Next we add: {a} + {k} = {b}.",
        "With {k} more, it is {a} + {k} = {b}.",
    ),
    "-": (
        "Taking away {k} leaves {a} - {k} = {b}.",
        "Then {name} has {k} less, so {a} - {k} = {b}.",
        "After that, {a} - {k} = {b} {things}.",
        "Next we subtract: {a} - {k} = {b}.",
        "Without those {k}, it is {a} - {k} = {b}.",
    ),
    "x": (
        "Multiplying by {k} gives {a} x {k} = {b}.",
        "Then {name} has {k} times as many, so {a} x {k} = {b}.",
        "After that, {a} x {k} = {b} {things}.",
        "Next we multiply: {a} x {k} = {b}.",
        "Now {k} times that is {a} x {k} = {b}.",
    ),
}

_SOLUTION_COMBINE = {
    "together": (
        "Together they have {a} + {k} = {b}.",
        "In all, that makes {a} + {k} = {b}.",
        "The sum is {a} + {k} = {b} {things}.",
    ),
    "difference": (
        "The difference is {a} - {k} = {b}.",
        "So {name} has {a} - {k} = {b} more.",
        "That means {a} - {k} = {b} {things} more.",
    ),
}

_CLOSING = "The answer is {answer}."
