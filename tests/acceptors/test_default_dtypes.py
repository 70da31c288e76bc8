"""What a process's default dtype is changes no decision: all that decides has a type of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from scipy.stats import poisson

from hf_lossy_assist import enabled, theory
from hf_lossy_assist.acceptors import decide
from hf_lossy_assist.core.distributions import Randomness
from hf_lossy_assist.core.messages import Verification
from hf_lossy_assist.evaluation.advice.replay import emitted
from tests.acceptors.fixtures import HEADS, ROUNDS, P, Q, assert_output_law, law_of, needs_no_distribution
from tests.acceptors.table import PUBLISHED, ROWS, Row, row_id
from tests.tiny_models import constant, noisy_copy, padded, tiny
from tests.trial.surroundings import default_dtype

OTHERS = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
RARE = 1e-4


@pytest.mark.parametrize("row", [*ROWS, *PUBLISHED], ids=row_id)
def test_output_law(row: Row):
    law, target = law_of(do_sample=True)
    q, randomness = torch.tensor(Q), Randomness(7)
    logits = q.log()
    with default_dtype(torch.bfloat16):
        tokens = randomness.categorical(q.expand(ROUNDS, -1))
        assert_output_law(row, law, target, tokens, randomness, logits.expand(ROUNDS, 1, -1))


@OTHERS
@pytest.mark.parametrize("row", [*filter(needs_no_distribution, ROWS)], ids=row_id)
def test_a_rare_token_is_kept_as_rarely_as_it_should_be(row: Row, dtype: torch.dtype):
    """Uniforms of 8 bits are exactly 0 in 0.2 % of all cases, and then keep a token that p allows at all."""
    rows, x, rule = 400_000, 0, row.rule(None)
    p = torch.tensor([RARE, 1 - RARE]).log().expand(rows, 2, -1)
    q = torch.tensor([1 - RARE, RARE]).log().expand(rows, 1, -1)
    tokens = torch.full((rows, 1), x)

    def kept() -> int:
        return int(decide(rule, Verification(tokens, p, q, True, Randomness(3))).n_accepted.sum())

    exact = kept()
    if row.mode == "lossless":
        assert poisson.ppf(1e-5, rows * RARE) <= exact <= poisson.ppf(1 - 1e-5, rows * RARE)
    with default_dtype(dtype):
        assert kept() == exact


@pytest.mark.parametrize("do_sample", [False, True], ids=["greedy", "sampling"])
@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if not row.rule(constant(P)).needs & {"dropped_heads", "hidden", "draft_hidden"}],
    ids=row_id,
)
def test_drafts_are_decided_alike(row: Row, do_sample: bool):
    """Thresholds that depend on a token's place in its draft are no whole numbers."""
    rule, generator = row.rule(constant(P)), torch.Generator().manual_seed(1)
    p, q = torch.randn(2, 20_000, 8, 6, generator=generator)
    tokens = q[:, :-1].argmax(-1)

    def decision() -> torch.Tensor:
        return decide(rule, Verification(tokens, p, q[:, :-1], do_sample, Randomness(3))).keep

    exact = decision()
    with default_dtype(torch.bfloat16):
        assert torch.equal(decision(), exact)


def _runs() -> Mapping[str, dict[str, Any]]:
    tree = {"depth": 3, "top_k": 2, "nodes": 6}
    return {
        "lossless": {},
        "early end": {"assistant_confidence_threshold": 0.3},
        "look-up": {"assistant_model": None, "prompt_lookup_num_tokens": 3},
        "tree": {"lossy_config": {"seed": 3, "tree": tree}},
        "static": {"cache_implementation": "static"},
        "block": {"lossy_config": {"seed": 3, "verification": "block"}},
        "EARS": {"lossy_mode": "ears"},
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
        with enabled(target):
            return target.generate(**padded((24, 17, 20)), **options, do_sample=True, max_new_tokens=40)

    exact = run()
    with default_dtype(torch.bfloat16):
        assert torch.equal(run(), exact)


@OTHERS
def test_laboratory(dtype: torch.dtype, tmp_path):
    """Forecasts, closed forms and heads from files."""
    rule, (p, q) = ROWS[0].rule(None), torch.randn(2, 4, 9)
    head = HEADS["sprinter"](target := tiny(), noisy_copy(target))
    head.save_pretrained(tmp_path)

    def values() -> list[Any]:
        law = emitted(rule, p, q)
        loaded = type(head).from_pretrained(tmp_path)
        return [law.kept, law.p, loaded.weight, loaded.bias, theory.lossless_acceptance([0.3, 0.7], [0.6, 0.4])]

    exact = values()
    with default_dtype(dtype):
        for ours, theirs in zip(values(), exact, strict=True):
            assert torch.equal(torch.as_tensor(ours), torch.as_tensor(theirs))
