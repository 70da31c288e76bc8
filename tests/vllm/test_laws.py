"""Tokens that the engine draws have the closed laws of their rules."""

from __future__ import annotations

import functools

import pytest
from scipy import stats

from tests.acceptors.table import Row, output_law, row_id
from tests.vllm.asking import asking, texts
from tests.vllm.laws import CLOSED, TEMPERATURE, against, law_after

REQUESTS = 500
TOLD_APART = ("ensemble", "typical-published")  # their laws are so far from the target's


@pytest.fixture(scope="module")
def drawn(engine, prompt) -> dict[str, list[list[int]]]:
    """Two tokens for each request; the rules share batches."""
    asked = [
        asking(row.mode, row.config, temperature=TEMPERATURE, seed=i, max_tokens=2, ignore_eos=True, detokenize=False)
        for row in CLOSED
        for i in range(REQUESTS)
    ]
    found = texts(engine, [prompt] * len(asked), *asked)
    return {row_id(row): found[i * REQUESTS : (i + 1) * REQUESTS] for i, row in enumerate(CLOSED)}


@pytest.mark.parametrize("row", CLOSED, ids=row_id)
def test_the_token_after_the_first_has_the_rule_s_law(drawn, prompt, pair, row: Row):
    """The confidence is 99.999 % for each rule, and so many tokens tell the target's own law apart; fixed seeds."""
    laws = functools.cache(lambda first: law_after(pair, [*prompt, first]))
    statistic, degrees = against(drawn[row_id(row)], lambda first: output_law(row, laws(first)))
    assert stats.chi2.sf(statistic, degrees) > 1e-5
    statistic, degrees = against(drawn[row_id(row)], lambda first: laws(first).p)
    assert degrees > 10, "the target's law is spread over many tokens"
    assert row_id(row) not in TOLD_APART or stats.chi2.sf(statistic, degrees) < 1e-9
