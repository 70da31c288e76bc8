"""The rule that leaves numbers to the target, against its words."""

from __future__ import annotations

import torch

from benchmarks.strict_words import DIGITS, OPERATORS, StrictWords
from hf_lossy_assist import pairs
from hf_lossy_assist.acceptors import Fsd
from hf_lossy_assist.core.messages import Verification


def test_words_may_differ_and_numbers_may_not():
    tokenizer = pairs.load("arithmetic").tokenizer
    draw = torch.Generator().manual_seed(0)
    p, q = (torch.randn(4000, 1, len(tokenizer), generator=draw) for _ in range(2))
    q = 0.7 * p + 0.3 * q
    x, best = q.argmax(-1), p.argmax(-1)
    v = Verification(x, p.expand(-1, 2, -1), draft_logits=q)
    near = Fsd(threshold=0.04).keep(v)
    words = [tokenizer.decode([a]) + tokenizer.decode([b]) for a, b in zip(x[:, 0], best[:, 0], strict=True)]
    strict = torch.tensor([[any(c in DIGITS | OPERATORS for c in word)] for word in words])

    kept = StrictWords(threshold=0.04, pair="arithmetic").keep(v)

    assert torch.equal(kept, (x == best) | (near & ~strict))
    assert 100 < (near & strict & (x != best)).sum() < (near & (x != best)).sum() - 100  # both kinds are there
    assert torch.equal(StrictWords(threshold=0.0, pair="arithmetic").keep(v), x == best)
