"""Our drafter draws from the q that it reports, keeps its cache right, and writes nowhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper

from hf_lossy_assist.core.distributions import Randomness
from hf_lossy_assist.generation.prepared import mask_of
from tests.acceptors.fixtures import chi_square_p
from tests.chains import chain, commit
from tests.tiny_models import ARCHITECTURES, constant, prompt, tiny

WARPERS = LogitsProcessorList([TemperatureLogitsWarper(0.7), TopKLogitsWarper(4)])


def naive_logits(model, ids: torch.Tensor, n: int) -> torch.Tensor:
    """Logits of the last n positions of ``ids`` and the one after, from one uncached forward."""
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits[:, -n - 1 :]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_reported_logits_are_those_of_an_uncached_forward_after_every_kind_of_round(architecture: str):
    model = tiny(architecture)
    drafter = chain(model, 4)
    ids = prompt()
    # Rejected at once, halfway, only the last, none: the committed token after the kept ones is a new one.
    for kept in (0, 2, 3, 4, 4, 1, 0):
        with torch.no_grad():
            draft = drafter.propose(ids, None, [99])
        reference = naive_logits(model, torch.cat([ids, draft.tokens], dim=1), 4)[:, :-1]
        torch.testing.assert_close(draft.logits, reference, atol=2e-4, rtol=2e-4)
        assert draft.tokens.equal(draft.logits.argmax(-1))
        before, ids = ids, torch.cat([ids, draft.tokens[:, :kept], torch.tensor([[17 + kept]])], dim=1)
        drafter.observe(commit(ids, before, 4))
    assert drafter.source.calls == 7 * 4


@torch.no_grad()
def test_tokens_are_drawn_from_the_processed_law_that_is_reported():
    """4,000 tokens: chi-square at p > 1e-5 catches a law that is off by 0.04 anywhere."""
    law = np.array([0.3, 0.25, 0.2, 0.15, 0.07, 0.03])
    drafter = chain(constant(law.tolist()), 4000, processors=WARPERS, do_sample=True, randomness=Randomness(0))
    draft = drafter.propose(torch.tensor([[1]]), None, [9999])
    expected = law ** (1 / 0.7) * (np.arange(6) < 4)
    expected /= expected.sum()
    np.testing.assert_allclose(draft.logits[0, 7].softmax(-1), expected, atol=1e-5)
    counts = np.bincount(draft.tokens[0], minlength=6)
    assert chi_square_p(counts, expected) > 1e-5


def test_greedy_drafts_report_the_processed_law_too():
    drafter = chain(constant([0.5, 0.3, 0.2]), 2, processors=LogitsProcessorList([TemperatureLogitsWarper(0.5)]))
    draft = drafter.propose(torch.tensor([[1]]), None, [9])
    torch.testing.assert_close(draft.logits[0, 0].softmax(-1), torch.tensor([0.25, 0.09, 0.04]) / 0.38)


def test_room_is_kept_for_the_target_s_token():
    drafter = chain(tiny(), 8)
    for room, drafted in ((4, 3), (2, 1), (1, 0)):
        draft = drafter.propose(prompt(), None, [room])
        assert draft.tokens.shape == (1, drafted)
        assert (draft.logits is None) == (drafted == 0)
        drafter.forget(prompt())


def test_logits_are_kept_only_on_demand():
    draft = chain(tiny(), 3, keep_logits=False).propose(prompt(), None, [99])
    assert len(draft) == 3
    assert draft.logits is None


def test_the_mask_of_new_tokens_is_the_end_of_one_that_covers_a_cache_too():
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 0, 1]])
    assert mask_of(prompt(3), {"attention_mask": mask}).tolist() == [[1, 0, 1]]
    assert mask_of(prompt(8), {"attention_mask": None}) is None
