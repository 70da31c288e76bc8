"""Tokens that the engine draws have the closed laws of their rules."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats

from tests.acceptors.table import PUBLISHED, ROWS, Law, Row, row_id
from tests.vllm.asking import asking, prompts_of, texts

REQUESTS = 500
TEMPERATURE = 1.5
TOLD_APART = ("ensemble", "typical-published")  # their laws are so far from the target's
CLOSED = [
    row
    for row in [*ROWS, *(row for row in PUBLISHED if row.mode == "typical")]
    if row.mode in ("lossless", "ears", "topk", "typical", "ensemble", "thresholds", "lenience", "cactus")
]


def law_after(pair, text: list[int]) -> Law:
    with torch.no_grad():
        p, q = (
            (model(torch.tensor([text])).logits[0, -1].double() / TEMPERATURE).softmax(-1).numpy()
            for model in (pair.target, pair.draft)
        )
    return Law(p, q, np.zeros(0), np.zeros(0), do_sample=True)


def expected(row: Row, law: Law) -> np.ndarray:
    kept = row.acceptance(law, row.config).astype(float)
    size = len(law.p)
    return law.q * kept + (law.q * (1 - kept)) @ np.broadcast_to(row.correction(law), (size, size))


def chi_square(counts: np.ndarray, law: np.ndarray) -> tuple[float, int]:
    """Return the statistic and its degrees of freedom; rare tokens count as one."""
    assert counts[law < 1e-9].sum() == 0, "a token of probability zero came out"
    often = counts.sum() * law >= 5
    found, wanted = (np.append(x[often], x[~often].sum()) for x in (counts, counts.sum() * law))
    found, wanted = (x[wanted > 1e-6] for x in (found, wanted))
    return float(((found - wanted) ** 2 / wanted).sum()), len(found) - 1


@pytest.fixture(scope="module")
def prompt(pair) -> list[int]:
    """A text whose next token is nearly certain, and the one after it is not."""
    best, found = 0.0, []
    for start in prompts_of(pair, 20):
        with torch.no_grad():
            text = pair.target.generate(torch.tensor([start]), do_sample=False, max_new_tokens=40)[0]
            p = (pair.target(text[None]).logits[0].double() / TEMPERATURE).softmax(-1)
        sure = p[:-1].gather(1, text[1:, None])[:, 0] > 0.7
        entropy = torch.where(sure, torch.special.entr(p).sum(-1)[1:], 0.0)
        if entropy.max() > best:
            best, found = float(entropy.max()), text[: int(entropy.argmax()) + 1].tolist()
    return found


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


def against(found: list[list[int]], law: Callable[[int], np.ndarray]) -> tuple[float, float]:
    """Compare second tokens with their law after each first token; return statistic and degrees of freedom."""
    statistic = degrees = 0.0
    for first, times in Counter(text[0] for text in found).items():
        if times >= 50:
            expected = law(first)
            counts = np.bincount([text[1] for text in found if text[0] == first], minlength=len(expected))
            value, freedom = chi_square(counts, expected)
            statistic, degrees = statistic + value, degrees + freedom
    return statistic, degrees


@pytest.mark.parametrize("row", CLOSED, ids=row_id)
def test_the_token_after_the_first_has_the_rule_s_law(drawn, prompt, pair, row: Row):
    """The confidence is 99.999 % for each rule, and so many tokens tell the target's own law apart; fixed seeds."""
    laws = functools.cache(lambda first: law_after(pair, [*prompt, first]))
    statistic, degrees = against(drawn[row_id(row)], lambda first: expected(row, laws(first)))
    assert stats.chi2.sf(statistic, degrees) > 1e-5
    statistic, degrees = against(drawn[row_id(row)], lambda first: laws(first).p)
    assert degrees > 10, "the target's law is spread over many tokens"
    assert row_id(row) not in TOLD_APART or stats.chi2.sf(statistic, degrees) < 1e-9
