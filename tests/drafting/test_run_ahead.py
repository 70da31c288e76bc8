"""SPRINTER's rows run ahead apart, and each gets what it gets alone.

The chi-square test uses p > 1e-5 on 6,000 tokens: it catches an output law that is off by 0.03 in any token.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.acceptors.fixtures import P, Q, Simulated, chi_square_p, telling
from tests.acceptors.fixtures import verifier_head as head_for
from tests.models import LENGTHS, VOCAB, constant, noisy_copy, padded, prompt, tiny

TOKENS = 40
GREEDY = {"do_sample": False, "max_new_tokens": TOKENS, "eos_token_id": None, "return_dict_in_generate": True}


def alone(i: int) -> dict[str, torch.Tensor]:
    return {"input_ids": prompt(LENGTHS[i], seed=i), "attention_mask": torch.ones(1, LENGTHS[i]).long()}


@pytest.mark.parametrize("position", ["previous", "token"])
@pytest.mark.parametrize(
    ("architecture", "mode", "settings"),
    [
        ("llama", "sprinter", {}),
        ("mistral", "sprinter", {}),
        ("gpt2", ["sprinter", "topk"], {"topk": {"k": 3}}),
        ("llama", "sprinter", {"budget": 0.4, "strict_first_n": 5}),
    ],
)
def test_a_row_gets_what_it_gets_alone(architecture, mode, settings, position: str):
    target = tiny(architecture)
    draft = noisy_copy(target, 0.08)
    head = head_for(target, draft, position, scale=3.0, seed=1)
    settings = settings | ({"sprinter": {"max_draft": 7}} if isinstance(mode, list) else {"max_draft": 7})
    kwargs = GREEDY | {"assistant_model": draft, "lossy_mode": mode, "lossy_head": head, "lossy_config": settings}
    kwargs |= {"eos_token_id": [5, 17], "pad_token_id": 0}
    out = target.generate(**kwargs, **padded())
    ends = set()
    for i, length in enumerate(LENGTHS):
        single = target.generate(**kwargs, **alone(i))
        row = out.lossy_stats.rows[i]
        generated = len(single.lossy_stats.trace)
        ends.add(generated)
        assert out.sequences[i, max(LENGTHS) - length :][: length + generated].equal(single.sequences[0])
        assert row.trace == single.lossy_stats.trace
        assert row.run_histogram == single.lossy_stats.run_histogram
        assert (row.rounds, row.unverified) == (single.lossy_stats.rounds, single.lossy_stats.unverified)
    assert 0 < out.lossy_stats.unverified < len(out.lossy_stats.trace)
    assert len(ends) > 1, "rows end apart"


def test_output_law_of_theorem_1():
    tpr, fpr = 0.8, 0.4
    draft = telling(Q)
    head = head_for(constant(P), draft, "token", cls=Simulated).rates(tpr, fpr)
    out = constant(P).generate(
        input_ids=torch.ones(12, 1, dtype=torch.long), attention_mask=torch.ones(12, 1, dtype=torch.long),
        assistant_model=draft, lossy_mode="sprinter", lossy_head=head, lossy_config={"seed": 3},
        do_sample=True, top_k=0, max_new_tokens=500, return_dict_in_generate=True,
    )  # fmt: skip
    law = (1 - fpr) * np.array(P) + fpr * np.array(Q)
    assert chi_square_p(np.bincount(out.sequences[:, 1:].flatten(), minlength=len(P)), law) > 1e-5


def test_heads_that_always_or_never_accept():
    target = tiny()
    draft = noisy_copy(target, 0.1)
    kwargs = GREEDY | padded() | {"assistant_model": draft, "lossy_mode": "sprinter"}
    never = target.generate(**kwargs, lossy_head=head_for(target, draft, bias=-50.0, scale=0.0))
    plain = target.generate(**GREEDY, **padded())
    assert never.sequences.equal(plain.sequences)
    assert never.lossy_stats.target_calls == TOKENS
    always = target.generate(**kwargs, lossy_head=head_for(target, draft, bias=50.0, scale=0.0))
    assert always.sequences.equal(draft.generate(**GREEDY, **padded()).sequences)
    assert always.lossy_stats.target_calls == 0
    assert always.lossy_stats.flops["actual"] > 0
    assert always.sequences.max() < VOCAB
