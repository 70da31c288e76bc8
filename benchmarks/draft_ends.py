"""``python -m benchmarks.draft_ends``: whether drafts that end by the draft's confidence pay, rule by rule.

Rules are replayed along the target's answers in a folder of ``lossy-assist advise --out``, with drafts of γ tokens, and
with drafts of up to 15 tokens that end once Π q(xᵢ) is below a bound. No model runs. The γ and the bound that are best
on one half of the answers are applied to the other half, so that neither gains by the choice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from safetensors.torch import load

from benchmarks import command
from hf_lossy_assist.acceptors import Acceptor
from hf_lossy_assist.cli.console import limit_threads
from hf_lossy_assist.drafting.draft_ends import DEFAULT_NUM_TOKENS, LONGEST
from hf_lossy_assist.evaluation.advice.advising import GAMMAS
from hf_lossy_assist.evaluation.advice.replay import Walk, greedy, rounds
from hf_lossy_assist.evaluation.advice.text_logits import TextLogits
from hf_lossy_assist.evaluation.answers import read_plan
from hf_lossy_assist.evaluation.costs import Costs
from hf_lossy_assist.evaluation.modes import parse_modes
from hf_lossy_assist.evaluation.quality import times_as_fast
from hf_lossy_assist.evaluation.tables import interval, table
from hf_lossy_assist.generation.config import LossyConfig
from hf_lossy_assist.store.folder import append_lines, read_lines

ENDS = (0.7, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.05, 0.02)
RULES = (
    "lossless,near_top,ensemble,relaxed:top_n=2:delta=0.2,fsd,lenience,min_p,fly,margin,topk,typical,regret,everything"
)
COLUMNS = {
    name: itemgetter(i)
    for i, name in enumerate(("rule", "best γ", "best end", "end × γ", "0.5 × γ", "default × γ", "γ = 5 × γ"))
}


def main(
    out: Annotated[Path, typer.Option(metavar="FILE", help="A file of rows. If it exists, its table is printed.")],
    folder: Annotated[Path | None, typer.Option(help="A folder of `advise --out`.")] = None,
    costs: Annotated[Path | None, typer.Option(help="An advice.json with other costs than the folder's.")] = None,
    rules: Annotated[str, typer.Option(help="Rules that decide by p, q and x, as for evaluate.")] = RULES,
) -> None:
    """Print speeds with drafts that end early over speeds with drafts of each rule's best γ, with 95 % intervals."""
    limit_threads(1)
    if not out.exists():
        found = json.loads((costs or folder / "advice.json").read_text(encoding="utf-8"))["costs"]
        append_lines(out, replayed(folder, found, rules))
    first, *rows = (row for _, row in read_lines(out))
    Console(soft_wrap=True).print(table(summary(rows, first["tokens"]), COLUMNS, f"{len(first['tokens'])} answers"))


def replayed(folder: Path, found: Mapping[str, Any], rules: str) -> Iterator[dict[str, Any]]:
    """Yield the answers' tokens and the costs of steps, and then each rule's seconds with each end of drafts."""
    plan = read_plan(folder)
    temperature = plan["modes"][plan["reference"]]["temperature"]
    texts = [load(path.read_bytes()) for path in sorted(folder.glob("*-logits.safetensors"))]
    laws, sampled = TextLogits.of(texts, plan["max_new_tokens"]), temperature is not None
    yield {"tokens": laws.lengths.tolist(), "costs": {name: found[name] for name in ("draft", "target")}}
    costs = Costs((1,), (0.0,), (0.0,), (found["draft"],), {int(n): (s,) for n, s in found["target"].items()})
    settings = [*((gamma, 0.0) for gamma in GAMMAS), *((LONGEST, end) for end in ENDS)]
    for mode in parse_modes(rules, None, temperature):
        rule = LossyConfig.from_fields(mode.rule, dict(mode.settings)).rule
        walk = walker(rule, laws, sampled)
        for gamma, end in settings:
            seconds = walk(gamma, end).sizes @ [costs.round(size, 1) for size in range(gamma + 1)]
            row = {"rule": mode.label, "gamma": gamma, "end": end, "default": rule.drafts_until}
            yield {**row, "seconds": [float(f"{x:.4g}") for x in seconds]}


def walker(rule: Acceptor, laws: TextLogits, sampled: bool) -> Callable[[int, float], Walk]:
    if sampled or rule.reads_draft:
        return lambda gamma, end: rounds(rule, laws, gamma, sampled, end)
    alone = greedy(rule, laws)
    return lambda gamma, end: alone.walk(laws, gamma, end)


_Settings = Mapping[tuple[int, float], np.ndarray]
"""Seconds of each answer by γ and the bound that ends drafts."""


def summary(rows: Sequence[Mapping[str, Any]], tokens: Sequence[int]) -> list[list[str]]:
    """Return the cells of each rule."""
    cells = []
    for rule in dict.fromkeys(row["rule"] for row in rows):
        own = [row for row in rows if row["rule"] == rule]
        seconds = {(row["gamma"], row["end"]): np.array(row["seconds"]) for row in own}
        plain, ended = ({key: x for key, x in seconds.items() if bool(key[1]) == ends} for ends in (False, True))
        settings = (LONGEST, 0.5), (LONGEST, own[0]["default"]), (DEFAULT_NUM_TOKENS, 0.0)
        others, base = [_crossed(ended), *(seconds[key] for key in settings)], _crossed(plain)
        times = [times_as_fast(*(list(zip(tokens, x, strict=True)) for x in (each, base))) for each in others]
        every = np.full(len(tokens), True)
        cells.append([rule, str(_best(plain, every)[0]), f"{_best(ended, every)[1]:g}", *map(interval, times)])
    return cells


def _best(settings: _Settings, texts: np.ndarray) -> tuple[int, float]:
    return min(settings, key=lambda key: settings[key][texts].sum())


def _crossed(settings: _Settings) -> np.ndarray:
    """Return the seconds of each answer with what is best for the other half of them."""
    even = np.arange(len(next(iter(settings.values())))) % 2 == 0
    return np.where(even, settings[_best(settings, ~even)], settings[_best(settings, even)])


app = command(main)

if __name__ == "__main__":
    app()
