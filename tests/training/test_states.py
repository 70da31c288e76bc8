"""Hidden states of mismatches, and texts that come and go in a batch, against one forward for each."""

from __future__ import annotations

import pytest
import torch

from hf_lossy_assist.models.reading import CachedText
from hf_lossy_assist.training.judge_labels import Mismatch, mismatch_states
from hf_lossy_assist.training.writing import RowBatch
from tests.models.references import close, logits_of
from tests.tiny_models import ARCHITECTURES, tiny
from tests.training.parts import states_of

PROMPT = (1, 5, 9, 20)
RESPONSE = (7, 8, 30, 31, 32, 12, 13, 14, 15, 33)
# Important ones leave the target's token in the response, the others the draft's; also the first and the last token.
MISMATCHES = (
    Mismatch(0, 7, 40, True),
    Mismatch(2, 50, 30, False),
    Mismatch(3, 31, 41, True),
    Mismatch(6, 51, 13, False),
    Mismatch(9, 33, 42, True),
)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_states_are_those_of_one_text_for_each_mismatch(architecture):
    model = tiny(architecture)
    found = mismatch_states(model, PROMPT, RESPONSE, MISMATCHES, CachedText())
    assert list(found) == ["previous", "draft"]
    for i, one in enumerate(MISMATCHES):
        before = [*PROMPT, *RESPONSE[: one.index]]
        for position, text in (("previous", before), ("draft", [*before, one.draft_token])):
            torch.testing.assert_close(found[position][i], states_of(model, text)[-1], atol=2e-5, rtol=1e-4)


def test_only_what_is_wanted_is_read():
    model, read = tiny(), []
    model.register_forward_pre_hook(lambda _, args, given: read.append(given["input_ids"].shape[1]), with_kwargs=True)
    found = mismatch_states(model, PROMPT, RESPONSE, MISMATCHES[:1], CachedText())
    assert found["draft"].shape == (1, 32)
    assert read == [5, 1]  # nothing after the last mismatch


def test_a_row_may_begin_with_nothing():
    model = tiny()
    rows = RowBatch(model)
    rows.put(0, CachedText(), 0)
    close(rows.step({0: 7})[0], logits_of(model, (7,))[-1])
    rows.put(1, rows.remove(0), 1)
    close(rows.step({1: 9})[0], logits_of(model, (7, 9))[-1])
