"""The rules on models that were really trained."""

from __future__ import annotations

import pytest
import torch

from hf_lossy_assist import pairs
from tests.acceptors.table import ROWS, Row, row_id
from tests.parity import assert_same_text

GREEDY = {"do_sample": False, "max_new_tokens": 160, "return_dict_in_generate": True}


@pytest.fixture(scope="module")
def pair() -> pairs.Pair:
    return pairs.load("arithmetic")


def inputs(pair: pairs.Pair, n: int) -> list[dict[str, torch.Tensor]]:
    return [pair.tokenizer(e.prompt, return_tensors="pt") for e in pair.task.examples("test", n)]


def test_lossless_text_is_plain_text(pair: pairs.Pair):
    for i, prompt in enumerate(inputs(pair, 3)):
        plain = pair.target.generate(**prompt, output_logits=True, **GREEDY)
        ours = pair.target.generate(
            **prompt,
            assistant_model=pair.draft,
            lossy_mode="lossless",
            num_assistant_tokens=(1, 5, 16)[i],
            **GREEDY,
        )
        assert_same_text(ours.sequences, plain)


@pytest.mark.parametrize("row", ROWS, ids=row_id)
def test_the_hook_does_in_stock_s_loop_what_ours_does(pair: pairs.Pair, row: Row):
    hook = row.hook(pair.target, pair.draft, num_assistant_tokens=8, seed=0)
    (prompt,) = inputs(pair, 1)
    kwargs = GREEDY | {**prompt, "assistant_model": pair.draft, "max_new_tokens": 30}
    ours = pair.target.generate(**kwargs, **row.keywords(pair.target, pair.draft, seed=0), num_assistant_tokens=8)
    with hook:
        theirs = pair.target.generate(**kwargs, logits_processor=[hook])
    assert theirs.sequences.tolist() == ours.sequences.tolist()
    assert hook.stats.trace == ours.lossy_stats.trace
    assert hook.stats.accepted_histogram == ours.lossy_stats.accepted_histogram


def test_lossy_rules_keep_more_than_lossless(pair: pairs.Pair):
    lossless = kept_a_round(pair, "lossless", None)
    for mode, config in (("dropmatch", {"seed": 0}), ("topk", {"k": 2}), ("relaxed", {"top_n": 10, "delta": 0.6})):
        assert kept_a_round(pair, mode, config) > lossless + 0.2, mode


def kept_a_round(pair: pairs.Pair, mode: str, config: dict | None) -> float:
    runs = [
        pair.target.generate(
            **prompt,
            assistant_model=pair.draft,
            lossy_mode=mode,
            lossy_config=config,
            num_assistant_tokens=8,
            **GREEDY,
        ).lossy_stats
        for prompt in inputs(pair, 3)
    ]
    return sum(run.accepted for run in runs) / sum(run.rounds for run in runs)
