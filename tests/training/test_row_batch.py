"""Texts that come and go in a batch against one forward for each text."""

from __future__ import annotations

import random

import pytest

from hf_lossy_assist.models.reading import CachedText, remembered
from hf_lossy_assist.training.writing import RowBatch
from tests.models.references import close, logits_of, texts
from tests.tiny_models import SOME_ARCHITECTURES, VOCAB, tiny


@pytest.mark.parametrize("architecture", SOME_ARCHITECTURES)
def test_rows_come_and_go(architecture):
    """Random exchanges of rows."""
    model = tiny(architecture)
    rng = random.Random(0)
    rows = RowBatch(model)
    held: list[tuple[int, ...] | None] = [None] * 3
    memories = remembered(model, texts(2, (4, 11, 25)))
    for step in range(80):
        key = rng.randrange(3)
        if held[key] is None or rng.random() < 0.1:
            if held[key] is not None:
                memories[key] = rows.remove(key)
                assert memories[key].tokens == held[key]
            memory = rng.choice(memories)
            n = rng.randrange(1, min(len(memory.tokens), 40) + 1)
            rows.put(key, memory, n)
            held[key] = memory.tokens[:n]
        tokens = {i: rng.randrange(3, VOCAB) for i, text in enumerate(held) if text is not None}
        logits = rows.step(tokens)
        for row, i in enumerate(tokens):
            held[i] = (*held[i], tokens[i])
            if step % 8 == 0:
                close(logits[row], logits_of(model, held[i])[-1])
    close(rows.step({2: 5, 0: 6})[1], logits_of(model, (*held[0], 6))[-1])  # one text is forgotten
    close(rows.step({0: 7})[0], logits_of(model, (*held[0], 6, 7))[-1])


def test_a_row_may_begin_with_nothing():
    model = tiny()
    rows = RowBatch(model)
    rows.put(0, CachedText(), 0)
    close(rows.step({0: 7})[0], logits_of(model, (7,))[-1])
    rows.put(1, rows.remove(0), 1)
    close(rows.step({1: 9})[0], logits_of(model, (7, 9))[-1])
