"""Equality: every rule once, and lossless texts beside plain ones, in every way that forwards run."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel

from hf_lossy_assist import pairs
from hf_lossy_assist.acceptors import REGISTRY

from .run import Run, heard

TEXTS = (
    "Tom has 3 apples and buys 4 more. How many apples does he have?", "A farmer has 12 cows and sells 5 of them.",
    "Anna reads 7 pages a day for 6 days.", "There are 8 boxes with 4 pens each.", "1 + 2 =", "Kim eats 6 candies.",
    "Sam walks 3 miles. Then he walks 5 miles.", "Ben has 9 coins. He gives 2 coins to Mia and 3 to Leo.",
)  # fmt: skip
TREE = {"tree": {"depth": 4, "top_k": 4, "nodes": 16}}
LOSSLESS = {
    "one by one": {"lossy_config": {"compile": False}, "num_assistant_tokens": 5},
    "graphs": {"num_assistant_tokens": 5},
    "graphs, default length": {},
    "tree": {"lossy_config": TREE},
    "tree, one by one": {"lossy_config": TREE | {"compile": False}},
    "static": {"cache_implementation": "static", "num_assistant_tokens": 5, "disable_compile": True},
    "lookup": {"assistant_model": None, "prompt_lookup_num_tokens": 4},
    "EAGLE-3": {"num_assistant_tokens": 4},
    "EAGLE-3, tree": {"lossy_config": TREE},
}
SETTINGS = {"dropmatch": {"dropout": 0.1}}
TIE = {torch.float32: 1e-3, torch.bfloat16: 0.5}
"""How far ahead the target's best token may be where texts differ, in logits."""


def equality(run: Run) -> None:
    new = run.tokens(48)
    for dtype in (torch.float32,) if run.tiny else (torch.float32, torch.bfloat16):
        pair = pairs.load("arithmetic", dtype=dtype, device=run.device)
        many = pair.tokenizer(list(TEXTS[: 2 if run.tiny else None]), return_tensors="pt", padding=True).to(run.device)
        one = pair.tokenizer(TEXTS[0], return_tensors="pt").to(run.device)
        drafts = {"EAGLE-3": pair.eagle3, "EAGLE-3, tree": pair.eagle3}
        for inputs in (one, many):
            common = {"max_new_tokens": new, "do_sample": False, "pad_token_id": 0}
            plain = pair.target.generate(**inputs, **common)
            for name, kwargs in LOSSLESS.items():
                with run.step(f"equality, {name}") as begins:
                    if begins:
                        kwargs = {"assistant_model": drafts.get(name, pair.draft), "lossy_mode": "lossless"} | kwargs
                        with heard() as said:
                            ours = pair.target.generate(**inputs, **common, **kwargs)
                        row = _compared(pair.target, plain, ours, inputs.input_ids.shape[1])
                        if said or any(margin > TIE[dtype] for margin in row["margins"]):
                            run.fail(f"equality, {name}")
                        run.say("equality", case=name, dtype=dtype, batch=len(plain), **row, warned=said)
        if dtype == torch.float32:
            _rules(run, pair, many)
        _drawn(run, pair, one)


def _rules(run: Run, pair: pairs.Pair, inputs: Any) -> None:
    """Run every rule twice with one seed, greedy and drawn."""
    for mode in sorted(REGISTRY):
        for do_sample in (False, True):
            with run.step(f"rule {mode}") as begins:
                if not begins:
                    continue
                kwargs = {"assistant_model": pair.draft, "lossy_mode": mode, "max_new_tokens": 8 if run.tiny else 40}
                kwargs |= {"lossy_config": {"seed": 1, **SETTINGS.get(mode, {})}, "pad_token_id": 0}
                kwargs |= {"lossy_head": pair.rule_heads[mode]} if mode in pair.rule_heads else {}
                kwargs |= {} if mode == "sprinter" else {"num_assistant_tokens": 5}
                with heard():
                    first, second = (pair.target.generate(**inputs, **kwargs, do_sample=do_sample) for _ in range(2))
                if not (repeats := torch.equal(first, second)):
                    run.fail(f"rule {mode}")
                run.say("rule", mode=mode, do_sample=do_sample, repeats=repeats, shape=list(first.shape))


def _drawn(run: Run, pair: pairs.Pair, inputs: Any) -> None:
    """Compare the second drawn token's distribution with that of plain draws: total variation, beside plain twice."""
    count, at = 16 if run.tiny else 512, inputs.input_ids.shape[1] + 1
    ways = ({}, {}, {"num_assistant_tokens": 2})
    with run.step("drawn", 10) as begins:
        if begins:
            laws = []
            for i, way in enumerate(ways):
                torch.manual_seed(i)
                ours = {"assistant_model": pair.draft, "lossy_mode": "lossless"} if way else {}
                common = {"do_sample": True, "max_new_tokens": 3, "num_return_sequences": count, "pad_token_id": 0}
                with heard():
                    tokens = pair.target.generate(**inputs, **common, **ours, **way)[:, at]
                laws.append(torch.bincount(tokens, minlength=len(pair.tokenizer)) / count)
            apart = [round(float((law - laws[0]).abs().sum() / 2), 4) for law in laws[1:]]
            run.say("drawn", total_variation=dict(zip(("plain again", "chain"), apart, strict=True)))


def _compared(target: PreTrainedModel, plain: torch.Tensor, ours: torch.Tensor, start: int) -> dict[str, Any]:
    """Compare texts row by row; where one differs, say by how much the target's best token was ahead."""
    width, margins = min(plain.shape[1], ours.shape[1]), []
    for row, own in zip(plain, ours, strict=True):
        differs = (row[start:width] != own[start:width]).nonzero()
        if len(differs):
            text = row[: start + int(differs[0])]
            with torch.no_grad():
                best = target(text[text != 0][None]).logits[0, -1].float().topk(2).values
            margins.append(round(float(best[0] - best[1]), 4))
    return {"equal_rows": len(plain) - len(margins), "margins": margins}
