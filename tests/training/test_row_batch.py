"""Texts that come and go in a batch against one forward for each text."""

from __future__ import annotations

from hf_lossy_assist.models.reading import CachedText
from hf_lossy_assist.training.writing import RowBatch
from tests.models.references import close, logits_of
from tests.tiny_models import tiny


def test_a_row_may_begin_with_nothing():
    model = tiny()
    rows = RowBatch(model)
    rows.put(0, CachedText(), 0)
    close(rows.step({0: 7})[0], logits_of(model, (7,))[-1])
    rows.put(1, rows.remove(0), 1)
    close(rows.step({1: 9})[0], logits_of(model, (7, 9))[-1])
