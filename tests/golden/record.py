"""Keeps decisions that leave a margin, so that another machine takes the same ones.

``python -m tests.golden.record`` writes ``record.json``: what greedy and drawn texts of the golden cases consist of.
A case is kept where nothing changes when every weight of target, draft and heads is changed at random by a
thousandth of itself. That is thousands of times what the order of sums does in float32, and reaches whatever a rule
compares.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import hf_lossy_assist

from .cases import ALL_OUTPUTS, RULES, Case, all_cases
from .worker import run
from .worlds import World, world

RECORD = Path(__file__).with_name("record.json")
WORLDS = ("arithmetic", "llama")
"""Whose weights do not depend on the version of transformers."""
ATTEMPTS = 8
SIZE = 1e-3
CASES = 48
LETTERS = {"accepted": "a", "accepted_lossy": "l", "corrected": "c", "bonus": "b"}


def decisions(case: Case) -> dict[str, Any]:
    """Return the generated tokens of a case, where each came from, and how often the target was asked."""
    outcome = run(case)
    if "error" in outcome:
        return outcome
    start = world(case.world).inputs[case.rows]["input_ids"].shape[1]
    rows = outcome["stats"]["rows"] or [outcome["stats"]]
    return {
        "tokens": [row[start:] for row in outcome["sequences"]],
        "trace": ["".join(LETTERS[kind] for kind in row["trace"]) for row in rows],
        "target_calls": outcome["stats"]["target_calls"],
    }


def draws() -> list[int]:
    """Return random numbers of every kind that decoding draws; platforms differ in them."""
    generator = torch.Generator().manual_seed(3)
    mask = torch.empty(64).bernoulli_(0.7, generator=generator)
    tokens = torch.multinomial(torch.ones(8, 64), 1, generator=generator)
    uniform = torch.rand(8, generator=generator) * 1000
    return torch.cat([mask, tokens.flatten(), uniform]).long().tolist()


def is_drawn(case: Case) -> bool:
    """Tell whether random numbers decide, be it only which units a head drops."""
    return case.sampling != "greedy" or "dropmatch" in str(RULES[case.rule][0])


@contextmanager
def _shaken(made: World, seed: int) -> Iterator[None]:
    """Change all weights a little inside the block."""
    generator = torch.Generator().manual_seed(seed)
    modules = made.target, made.draft, *made.heads.values()
    weights = list({id(x): x for module in modules for x in module.parameters()}.values())
    before = [x.detach().clone() for x in weights]
    with torch.no_grad():
        for x in weights:
            x.mul_(1 + SIZE * torch.randn(x.shape, generator=generator))
    try:
        yield
    finally:
        with torch.no_grad():
            for x, value in zip(weights, before, strict=True):
                x.copy_(value)


def has_margin(case: Case, decided: dict[str, Any]) -> bool:
    """Tell whether the decisions outlive small changes of all weights."""
    for seed in range(ATTEMPTS):
        with _shaken(world(case.world), seed):
            if decisions(case) != decided:
                return False
    return True


def candidates() -> Iterator[Case]:
    """Yield a case of every rule, each of another kind than the rule before, then another case of every rule."""
    cases = [
        case for case in all_cases().values()
        if case.world in WORLDS and case.call == "generated" and case.drafter in ("assistant", "lookup")
        and case.sampling != "global" and case.options is not ALL_OUTPUTS and not case.name.startswith("compiled")
    ]  # fmt: skip
    by_rule = []
    for i, rule in enumerate(RULES):
        of_rule = [case for case in cases if case.rule == rule]
        turn = i % len(of_rule)
        by_rule.append(of_rule[turn:] + of_rule[:turn])
    for group in itertools.zip_longest(*by_rule):
        yield from filter(None, group)


def main() -> None:
    """Write the record."""
    torch.set_num_threads(1)
    kept: dict[str, Any] = {}
    with hf_lossy_assist.enabled():
        for case in candidates():
            decided = decisions(case)
            if "error" not in decided and has_margin(case, decided):
                kept[case.name] = decided
                sys.stdout.write(f"{case.name}\n")
            if len(kept) == CASES:
                break
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in kept.items())
    RECORD.write_text(f'{{"draws": {json.dumps(draws())}, "cases": {{\n{lines}\n}}}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
