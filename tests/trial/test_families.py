"""Every architecture drafts with its first layers, drafts for another and decodes in batches, or is refused by name."""

from __future__ import annotations

import pytest

from hf_lossy_assist import LossyError
from hf_lossy_assist.compat.probe import obstacle_to_rollback
from tests.parity import assert_same_rows
from tests.tiny_models import padded, prompt
from tests.trial.calls import TIE
from tests.trial.drawing import attempt
from tests.trial.families import RECURRENT, family

GREEDY = {"do_sample": False, "max_new_tokens": 10, "eos_token_id": [5, 9, 20, 30], "pad_token_id": 0}
# Their caches hold more than keys: their first layer doesn't know how long the text is.
CONVOLVING = ("lfm2", "lfm2_moe")


def lossless(target, rows: int, **drafting):
    inputs = {"input_ids": prompt()} if rows == 1 else padded()
    return attempt(lambda: target.generate(**inputs, **GREEDY, lossy_mode="lossless", **drafting), target)


def assert_same_as_plain(target, rows: int, **drafting) -> None:
    inputs = {"input_ids": prompt()} if rows == 1 else padded()
    plain = target.generate(**inputs, **GREEDY, output_logits=True, return_dict_in_generate=True)
    ours = lossless(target, rows, **drafting)
    assert ours.error is None, ours.error
    assert_same_rows(ours.value, plain, TIE)


def assert_refused(target, rows: int, argument: str, **drafting) -> None:
    ours = lossless(target, rows, **drafting)
    assert isinstance(ours.error, LossyError), ours.error
    assert argument in str(ours.error)
    assert not ours.forwards


@pytest.mark.parametrize("name", RECURRENT)
def test_models_with_recurrent_states(name: str):
    """Each goes on from a copy of its state, by several tokens or by one, or is refused as what it can't be."""
    target, draft = family(name)
    attending, _ = family("llama")
    if obstacle_to_rollback(target, several=True) is None:
        assert_same_as_plain(target, 1, assistant_model=draft)
    else:
        assert_refused(target, 1, "roll the cache back", prompt_lookup_num_tokens=3)
    if obstacle_to_rollback(draft, several=False) is None:
        assert_same_as_plain(attending, 1, assistant_model=draft)
    else:
        assert_refused(attending, 1, "assistant_model", assistant_model=draft)


@pytest.mark.parametrize("name", CONVOLVING)
def test_a_draft_whose_states_can_t_be_moved_with_rows(name: str):
    """Then rows are decoded one after another."""
    attending, (_, draft) = family("llama")[0], family(name)
    if obstacle_to_rollback(draft, several=False) is None:
        assert_same_as_plain(attending, 4, assistant_model=draft)


@pytest.mark.parametrize("name", ["gemma3n_text", "gemma4_text"])
def test_rows_of_layers_that_share_their_keys(name: str):
    target, draft = family(name)
    assert_same_as_plain(target, 4, assistant_model=draft)
    assert_same_as_plain(family("llama")[0], 4, assistant_model=draft)
