"""Data from which no head can be trained are refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.training.examples import check
from tests.training.synthetic import judged


def test_no_tokens():
    with pytest.raises(LossyValueError, match="has none"):
        check(judged().where(np.zeros(600, bool)))


@pytest.mark.parametrize(("label", "name"), [(True, "important"), (False, "unimportant")])
def test_one_class(label, name):
    examples = judged()
    with pytest.raises(LossyValueError, match=f"all of its 600 tokens are {name}"):
        check(replace(examples, labels=np.full(600, label)))


def test_one_prompt():
    with pytest.raises(LossyValueError, match="all 600 are of one"):
        check(replace(judged(), prompts=np.zeros(600, int)))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_states_that_are_not_finite(value):
    examples = judged()
    examples.states["draft_draft"][[3, 5], :] = value
    with pytest.raises(LossyValueError, match="'draft_draft' has NaN or infinite values in 2 of 600 tokens"):
        check(examples)
