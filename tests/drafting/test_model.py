"""Our drafter draws from the q that it reports, keeps its cache right, and writes nowhere."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper

from hf_lossy_assist.acceptors import Lossless
from hf_lossy_assist.core.distributions import Randomness
from hf_lossy_assist.core.texts import Texts
from hf_lossy_assist.drafting.draft_ends import HeuristicLength
from hf_lossy_assist.drafting.model import ModelDrafter, mask_of
from hf_lossy_assist.drafting.per_row import drafter_of
from tests.acceptors.fixtures import chi_square_p
from tests.tiny_models import ARCHITECTURES, constant, prompt, tiny

WARPERS = LogitsProcessorList([TemperatureLogitsWarper(0.7), TopKLogitsWarper(4)])


def naive_logits(model, ids: torch.Tensor, n: int) -> torch.Tensor:
    """Logits of the last n positions of ``ids`` and the one after, from one uncached forward."""
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits[:, -n - 1 :]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_reported_logits_are_those_of_an_uncached_forward_after_every_kind_of_round(architecture: str):
    model = tiny(architecture)
    drafter = ModelDrafter(model, 4)
    ids = prompt()
    # Rejected at once, halfway, only the last, none: the committed token after the kept ones is a new one.
    for kept in (0, 2, 3, 4, 4, 1, 0):
        with torch.no_grad():
            candidate, logits = drafter.get_candidates(ids)
        reference = naive_logits(model, candidate, 4)[:, :-1]
        torch.testing.assert_close(logits, reference, atol=2e-4, rtol=2e-4)
        assert candidate[0, -4:].tolist() == logits[0].argmax(-1).tolist()
        ids = torch.cat([candidate[:, : ids.shape[1] + kept], torch.tensor([[17 + kept]])], dim=1)
    assert drafter.calls == 7 * 4


@torch.no_grad()
def test_tokens_are_drawn_from_the_processed_law_that_is_reported():
    """4,000 tokens: chi-square at p > 1e-5 catches a law that is off by 0.04 anywhere."""
    law = np.array([0.3, 0.25, 0.2, 0.15, 0.07, 0.03])
    drafter = ModelDrafter(constant(law.tolist()), 4000, processors=WARPERS, do_sample=True, randomness=Randomness(0))
    candidate, logits = drafter.get_candidates(torch.tensor([[1]]))
    expected = law ** (1 / 0.7) * (np.arange(6) < 4)
    expected /= expected.sum()
    np.testing.assert_allclose(logits[0, 7].softmax(-1), expected, atol=1e-5)
    counts = np.bincount(candidate[0, 1:], minlength=6)
    assert chi_square_p(counts, expected) > 1e-5


def test_greedy_drafts_report_the_processed_law_too():
    drafter = ModelDrafter(constant([0.5, 0.3, 0.2]), 2, processors=LogitsProcessorList([TemperatureLogitsWarper(0.5)]))
    _, logits = drafter.get_candidates(torch.tensor([[1]]))
    torch.testing.assert_close(logits[0, 0].softmax(-1), torch.tensor([0.25, 0.09, 0.04]) / 0.38)


def test_room_is_kept_for_the_target_s_token():
    drafter = ModelDrafter(tiny(), 8, max_length=11)
    for length, drafted in ((7, 3), (9, 1), (10, 0), (11, 0)):
        candidate, logits = drafter.get_candidates(prompt(length))
        assert candidate.shape[1] - length == drafted
        assert (logits is None) == (drafted == 0)


def test_logits_are_kept_only_on_demand():
    candidate, logits = ModelDrafter(tiny(), 3, keep_logits=False).get_candidates(prompt())
    assert candidate.shape[1] == 7 + 3
    assert logits is None


def test_the_model_and_its_configurations_stay_as_they_were():
    model = tiny()
    before = copy.deepcopy((model.config.to_dict(), model.generation_config.to_dict()))
    drafter = ModelDrafter(model, HeuristicLength(4))
    for n in range(3):
        candidate, logits = drafter.get_candidates(prompt(7 + 5 * n))
        drafter.update_candidate_strategy(candidate, torch.zeros(1, logits.shape[1] + 1, 1), logits.shape[1])
    assert drafter.draft_length.size == 10
    assert (model.config.to_dict(), model.generation_config.to_dict()) == before


def test_a_draft_that_is_too_long_is_cut_to_the_room():
    layout = Texts(prompt(), pad=0)
    for drafter in (ModelDrafter(tiny(), 6), drafter_of(ModelDrafter(tiny(), 6), Lossless(), {})):
        cut = drafter.propose(prompt(), layout, [3])  # of which one is the target's
        assert cut.tokens.shape == (1, 2)
        assert cut.logits.shape[:2] == (1, 2)
        assert len(drafter.propose(prompt(), layout, [1])) == 0


def test_the_mask_of_new_tokens_is_the_end_of_one_that_covers_a_cache_too():
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 0, 1]])
    assert mask_of(prompt(3), {"attention_mask": mask}).tolist() == [[1, 0, 1]]
    assert mask_of(prompt(8), {"attention_mask": None}) is None
