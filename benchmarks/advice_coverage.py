"""``python -m benchmarks.advice_coverage``: how often the speed that ``advise`` predicts holds for other prompts."""

from __future__ import annotations

import random

WHO, WHAT = ("Mia", "Tom", "Ada", "Max", "Gina", "Quinn"), ("apples", "books", "coins", "stamps", "marbles", "eggs")


def _problem(draw: random.Random) -> str:
    who, other, what = *draw.sample(WHO, 2), draw.choice(WHAT)
    a, b, c = (draw.randint(2, 90) for _ in range(3))
    return draw.choice((
        f"Problem: A box holds {a} {what}. {who} buys {b % 9 + 2} boxes and drops {c % 9}. How many are left?\nSolution:",
        f"{who} had {a} {what}. {who} lost {c % a}. Now {who} has",
        f"Compute {a} + {b} - {c}.\nResult:",
        f"Q: If {who} has {a} {what} and {other} has {b} more, how many do both have?\nA: Let us think.",
        f"Story: {who} found {a} {what} on Monday and {b} on Tuesday, then gave {c} to {other}.\nTotal {what}:",
        f"Fill in: {a} {what} shared by {b % 7 + 2} friends is",
    ))  # fmt: skip


def _chat(draw: random.Random) -> str:
    who, what, n = draw.choice(WHO), draw.choice(WHAT), draw.randint(2, 90)
    asked = draw.choice((
        f"Hi, my name is {who}. What can I do with {n} {what}?", f"I have {n} {what} and give away {n // 2}. What is left?",
        f"Please tell me a story about {who} and the {what}.", f"Where can {who} buy {what} at a good price?",
        f"Is {n} more than {draw.randint(2, 90)}?", f"Write a letter from {who} to a friend about {what}.",
        f"Thanks! And how many {what} does {who} need for {n} days?",
    ))  # fmt: skip
    greeting = draw.choice(("", "System: You are a helpful friend.\n", "User: Hello!\nAssistant: Hello, how are you?\n"))
    return f"{greeting}User: {asked}\nAssistant:"


def _code(draw: random.Random) -> str:
    what, a, b = draw.choice(WHAT), draw.randint(2, 90), draw.randint(2, 90)
    return draw.choice((
        f"{what} = {a}\n{what} = {what} + {b}\nprint({what})  #", f"def add_{what}(a, b):\n    return a + b\n\nadd_{what}({a}, {b}) =",
        f"for i in range({a}):\n    {what}.append(i + {b})\nlen({what}) ==", f"total = 0\nwhile total < {a}:\n    total +=",
        f"assert {a} + {b} ==", f'{{"{what}": {a}, "price": {b}, "total":', f"x = {a}\ny = x - {b % a}\n# y is",
        f"SELECT count(*) FROM {what} WHERE price > {a} AND price < {a + b};\n--",
    ))  # fmt: skip


STYLES = {"problems": _problem, "chat": _chat, "code": _code}
"""Sets of prompts that the pair was not trained on."""


def prompts_of(style: str, count: int, seed: int = 0) -> list[str]:
    """Return different prompts of one of the :data:`STYLES`.

    Examples
    --------
    >>> prompts_of("code", 1)
    ['x = 51\\ny = x - 35\\n# y is']
    """
    draw, found = random.Random(f"{style}{seed}"), {}
    while len(found) < count:
        found[STYLES[style](draw)] = None
    return [*found]
