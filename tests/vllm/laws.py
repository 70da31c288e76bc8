"""The closed laws of drawn tokens, and how draws are compared with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import torch

from tests.acceptors.table import PUBLISHED, ROWS, Law

TEMPERATURE = 1.5
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


def chi_square(counts: np.ndarray, law: np.ndarray) -> tuple[float, int]:
    """Return the statistic and its degrees of freedom; rare tokens count as one."""
    assert counts[law < 1e-9].sum() == 0, "a token of probability zero came out"
    often = counts.sum() * law >= 5
    found, wanted = (np.append(x[often], x[~often].sum()) for x in (counts, counts.sum() * law))
    found, wanted = (x[wanted > 1e-6] for x in (found, wanted))
    return float(((found - wanted) ** 2 / wanted).sum()), len(found) - 1


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
