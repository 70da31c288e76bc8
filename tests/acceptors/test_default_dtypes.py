"""What a process's default dtype is changes no decision: all that decides has a type of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from hf_lossy_assist.acceptors import decide
from hf_lossy_assist.core.distributions import Randomness
from hf_lossy_assist.core.messages import Verification
from tests.acceptors.fixtures import HEADS, P, answers
from tests.acceptors.table import PUBLISHED, ROWS, Row
from tests.nightly import spread
from tests.tiny_models import constant, noisy_copy, padded, tiny
from tests.trial.surroundings import default_dtype

OTHERS = (torch.bfloat16, torch.float16, torch.float64)


@spread(row=[*ROWS, *PUBLISHED], do_sample=[True, False])
def test_drafts_are_decided_alike(row: Row, do_sample: bool):
    """Uniforms of 8 bits are exactly 0 in 0.2 % of cases; thresholds that depend on a place are no whole numbers."""
    target = constant(P)
    rule, generator = row.rule(target), torch.Generator().manual_seed(1)
    logits, read = answers(rule, target, 2_000, 8, generator)
    q = 2 * torch.randn(logits[:, :-1].shape, generator=generator)

    def decided() -> list[torch.Tensor]:
        decision = decide(rule, Verification(q.argmax(-1), logits, q, do_sample, Randomness(3), **read))
        return [decision.keep, decision.n_accepted, decision.next_token]

    exact = decided()
    assert 0 < exact[1].sum() < 7 * len(logits)
    for dtype in OTHERS:
        with default_dtype(dtype):
            assert all(map(torch.equal, decided(), exact)), dtype


def _runs() -> Mapping[str, dict[str, Any]]:
    tree = {"depth": 3, "top_k": 2, "nodes": 6}
    return {
        "lossless": {},
        "early end": {"assistant_confidence_threshold": 0.3},
        "look-up": {"assistant_model": None, "prompt_lookup_num_tokens": 3},
        "tree": {"lossy_config": {"seed": 3, "tree": tree}},
        "static": {"cache_implementation": "static"},
        "block": {"lossy_config": {"seed": 3, "verification": "block"}},
        "dropped heads": {"lossy_mode": "dropmatch"},
        "strict": {"lossy_mode": "topk", "lossy_config": {"seed": 3, "k": 3, "budget": 0.2}},
        "regret": {"lossy_mode": "regret"},
        "sprinter": {"lossy_mode": "sprinter"},
    }


@pytest.mark.parametrize("name", _runs())
def test_a_seeded_run_is_the_same(name: str):
    target = tiny()
    draft, options = noisy_copy(target), _runs()[name]
    options = {"assistant_model": draft, "lossy_mode": "lossless", "lossy_config": {"seed": 3}} | options
    if (mode := options["lossy_mode"]) in HEADS:
        options["lossy_head"] = HEADS[mode](target, draft)

    def run() -> torch.Tensor:
        return target.generate(**padded((24, 17, 20)), **options, do_sample=True, max_new_tokens=16)

    exact = run()
    with default_dtype(torch.bfloat16):
        assert torch.equal(run(), exact)
