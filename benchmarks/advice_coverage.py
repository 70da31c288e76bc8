"""``python -m benchmarks.advice_coverage``: how often ``advise`` is right about prompts that it has not seen.

It predicts from one half of each set of prompts. Every rule then answers the other half, and a cell is right if its
speed beside the best lossless setting lies in the interval of 95 %. Costs are made up, so no clock has a say.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from benchmarks import PairName, command, numbers
from hf_lossy_assist.cli.console import limit_threads, progress
from hf_lossy_assist.cli.models import LoadedModels, ModelOptions
from hf_lossy_assist.cli.options import Threads
from hf_lossy_assist.evaluation.advice.advising import Advising, target_alone
from hf_lossy_assist.evaluation.advice.speeds import Trial
from hf_lossy_assist.evaluation.costs import Costs
from hf_lossy_assist.evaluation.requests import batches_of, run_request
from hf_lossy_assist.evaluation.tables import percent, table
from hf_lossy_assist.store.folder import append_lines, read_lines

COSTS = Costs((1,), (0.0,), (0.0,), (0.15,), {1: (1.0,), 33: (1.6,)})
LIMIT, TOGETHER = 32, 48

WHO, WHAT = ("Mia", "Tom", "Ada", "Max", "Gina", "Quinn"), ("apples", "books", "coins", "stamps", "marbles", "eggs")


def _problem(draw: random.Random) -> str:
    who, other, what = *draw.sample(WHO, 2), draw.choice(WHAT)
    a, b, c = (draw.randint(2, 90) for _ in range(3))
    return draw.choice((
        f"Problem: A box has {a} {what}. {who} buys {b % 9 + 2} boxes and drops {c % 9}. How many are left?\nSolution:",
        f"{who} had {a} {what}. {who} lost {c % a}. Now {who} has",
        f"Compute {a} + {b} - {c}.\nResult:",
        f"Q: If {who} has {a} {what} and {other} has {b} more, how many do both have?\nA: Let us think.",
        f"Story: {who} found {a} {what} on Monday and {b} on Tuesday, then gave {c} to {other}.\nTotal {what}:",
        f"Fill in: {a} {what} shared by {b % 7 + 2} friends is",
    ))  # fmt: skip


def _chat(draw: random.Random) -> str:
    who, what, n = draw.choice(WHO), draw.choice(WHAT), draw.randint(2, 90)
    asked = draw.choice((
        f"Hi, my name is {who}. What can I do with {n} {what}?",
        f"I have {n} {what} and give away {n // 2}. What is left?",
        f"Please tell me a story about {who} and the {what}.",
        f"Where can {who} buy {what} at a good price?",
        f"Is {n} more than {draw.randint(2, 90)}?",
        f"Write a letter from {who} to a friend about {what}.",
        f"Thanks! And how many {what} does {who} need for {n} days?",
    ))  # fmt: skip
    greeting = draw.choice(
        ("", "System: You are a helpful friend.\n", "User: Hello!\nAssistant: Hello, how are you?\n")
    )
    return f"{greeting}User: {asked}\nAssistant:"


def _code(draw: random.Random) -> str:
    what, a, b = draw.choice(WHAT), draw.randint(2, 90), draw.randint(2, 90)
    return draw.choice((
        f"{what} = {a}\n{what} = {what} + {b}\nprint({what})  #",
        f"def add_{what}(a, b):\n    return a + b\n\nadd_{what}({a}, {b}) =",
        f"for i in range({a}):\n    {what}.append(i + {b})\nlen({what}) ==",
        f"total = 0\nwhile total < {a}:\n    total +=",
        f"assert {a} + {b} ==",
        f'{{"{what}": {a}, "price": {b}, "total":',
        f"x = {a}\ny = x - {b % a}\n# y is",
        f"SELECT count(*) FROM {what} WHERE price > {a} AND price < {a + b};\n--",
    ))  # fmt: skip


STYLES = {"problems": _problem, "chat": _chat, "code": _code}
"""Sets of prompts that the pair was not trained on."""


def prompts_of(style: str, count: int, seed: int = 0) -> list[str]:
    """Return different prompts of one of the :data:`STYLES`.

    Examples
    --------
    >>> prompts_of("code", 1)
    ['stamps = 66\\nstamps = stamps + 4\\nprint(stamps)  #']
    """
    draw, found = random.Random(f"{style}{seed}"), {}
    while len(found) < count:
        found[STYLES[style](draw)] = None
    return [*found]


class Predicting(Advising):
    """Advising with made-up costs."""

    def _costs(self, length: int) -> list[Costs]:
        return [COSTS]


def cells(
    loaded: LoadedModels, style: str, temperature: float | None, count: int, gammas: Sequence[int], modes: str,
    seed: int, known: Collection[tuple], bar: Any,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Yield the cells of a set that are not ``known``: what one half predicts, and what the other shows."""
    texts, drawn = prompts_of(style, 2 * count, seed), temperature is not None
    answers = target_alone(
        loaded.models, loaded.tokenizer, texts[:count], temperature=temperature, max_new_tokens=LIMIT, limit=count
    )
    advising = Predicting(answers, modes, tuple(gammas), track=bar.track)
    advice, rules = advising.run(), {mode.label: mode for mode, _ in advising.rules}
    prompts = [loaded.tokenizer(text)["input_ids"] for text in texts[count:]]

    def speed(mode: str, gamma: int | str) -> float:
        batches = batches_of(prompts, TOGETHER, pad=loaded.tokenizer.pad_token_id, seed=1000)
        mine = replace(rules[mode], gamma=gamma)
        found = Trial.of(mode, gamma, [run_request(loaded.models, mine, batch, LIMIT) for batch in batches])
        return float(found.tokens.sum() / found.row_seconds(COSTS, 1.0).sum())

    base = advice.row(advice.replayed[0])
    lossless = speed("lossless", base.gamma)
    for row in bar.track(advice.rows, description=f"{style}, {'drawn' if drawn else 'greedy'}"):
        key = {"set": style, "drawn": drawn, "mode": row.mode, "gamma": row.gamma}
        if (row.mode, row.gamma) != ("lossless", base.gamma) and tuple(key.values()) not in known:
            said = {name: round(getattr(row, name), 4) for name in ("ran", "others", "times_lossless", "low", "high")}
            yield key | said | {"seen": round(speed(row.mode, row.gamma) / lossless, 4)}


def summary(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the number of cells, the share that is right, the mean and the largest error, and the mean half width.

    Examples
    --------
    >>> summary([{"times_lossless": 1.1, "low": 1.0, "high": 1.21, "seen": 1.1}])
    ['1', '100', '0.0', '0.0', '9.5']
    """
    right = [row["low"] <= row["seen"] <= row["high"] for row in rows]
    errors = [abs(math.log(row["seen"] / row["times_lossless"])) for row in rows]
    width = [math.log(row["high"] / row["low"]) / 2 for row in rows]
    return [
        str(len(rows)),
        percent(np.mean(right)),
        *(percent(x, 1) for x in (np.mean(errors), max(errors), np.mean(width))),
    ]


NAMES = ("prompts", "cells", "right\n(%)", "error\n(%)", "at worst\n(%)", "half\nwidth (%)")
COLUMNS = {name: itemgetter(i) for i, name in enumerate(NAMES)}


def main(
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="A file of cells; those that it has are not measured again.")
    ],
    pair: PairName = "arithmetic",
    prompts: Annotated[int, typer.Option(min=2, help="Prompts of each half.")] = 24,
    gammas: Annotated[str, typer.Option(help="Draft lengths.")] = "3,6,12",
    modes: Annotated[str, typer.Option(help="Rules; by default those of advise.")] = "",
    styles: Annotated[str, typer.Option(help="Sets of prompts.")] = ",".join(STYLES),
    seed: Annotated[int, typer.Option(help="Of the prompts.")] = 1,
    threads: Threads = None,
) -> None:
    """Compare predicted with seen speeds on foreign prompts, greedily and drawn at temperature 1."""
    limit_threads(threads)
    screen, loaded = Console(soft_wrap=True), ModelOptions(pair).load()
    found = [row for _, row in read_lines(out)]
    known = {tuple(row[name] for name in ("set", "drawn", "mode", "gamma")) for row in found}
    with progress(screen) as bar:
        for style in styles.split(","):
            for temperature in (None, 1.0):
                for row in cells(
                    loaded, style, temperature, prompts, numbers("--gammas", gammas, int), modes, seed, known, bar
                ):
                    append_lines(out, [row])
                    found.append(row)
    for drawn in (False, True):
        own = [row for row in found if row["drawn"] == drawn]
        kinds = {style: [row for row in own if row["set"] == style] for style in STYLES}
        kinds |= {"all": own, "… of rules that ran": [row for row in own if row["ran"]]}
        lines = [[name, *summary(rows)] for name, rows in kinds.items() if rows]
        screen.print(table(lines, COLUMNS, "drawn at temperature 1" if drawn else "greedy"))


app = command(main)

if __name__ == "__main__":
    app()
