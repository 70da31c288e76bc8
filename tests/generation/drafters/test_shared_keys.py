"""Gemma 4's assistants; the oracles are transformers' own drafter for greedy drafts, and plain ``generate()``."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, LlamaForCausalLM
from transformers.generation.candidate_generator import SinglePositionMultiTokenCandidateGenerator
from transformers.modeling_outputs import ModelOutput

from hf_lossy_assist import LossyError
from hf_lossy_assist.generation.drafters import lookup_first
from tests.acceptors.fixtures import assert_second_token_has_the_law, chi_square_p
from tests.parity import TIE, assert_lossless
from tests.tiny_models import VOCAB, padded, prompt, tiny

gemma4 = pytest.importorskip("tests.gemma4_models", reason="no Gemma 4 assistants in this version")

GREEDY = {"do_sample": False, "max_new_tokens": 30, "eos_token_id": None, "return_dict_in_generate": True}


@pytest.fixture(scope="module")
def target():
    return gemma4.tiny_gemma4()


@pytest.fixture(scope="module")
def assistant():
    return gemma4.tiny_assistant()


@torch.no_grad()
def by_transformers(target, assistant, text: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what transformers' own drafter drafts, given the target's states of all but the newest token."""
    known = {"output_hidden_states": True, "return_shared_kv_states": True, "use_cache": False}
    whole = target(input_ids=text[None, :-1], **known)
    keys = dict(whole.shared_kv_states)
    sliding = assistant.config.text_config.sliding_window
    keys["sliding_attention"] = tuple(x[:, :, -sliding:] for x in keys["sliding_attention"])
    generator = SinglePositionMultiTokenCandidateGenerator(
        assistant_model=assistant, target_model_input_embeddings=target.get_input_embeddings(),
        generation_config=GenerationConfig(max_length=10**6),
    )  # fmt: skip
    generator.num_assistant_tokens = count
    candidate, logits = generator.get_candidates(
        text[None], model_kwargs={}, is_first_iteration=False, n_last_matches=0,
        model_outputs=ModelOutput(hidden_states=whole.hidden_states, shared_kv_states=keys),
    )  # fmt: skip
    return candidate[0, len(text) :], logits[0]


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("looked_up", [False, True])
def test_greedy_drafts_are_those_of_transformers(
    target, assistant, batched: bool, looked_up: bool, drafts, monkeypatch
):
    """Whatever was kept before, and wherever rows have moved to; texts outgrow the window."""
    if "model_kwargs" in inspect.signature(SinglePositionMultiTokenCandidateGenerator).parameters:
        pytest.skip("this version's drafter is made for one call, and ends drafts with the text")
    monkeypatch.setattr(lookup_first, "SHORTEST", 1)
    inputs = padded() if batched else {"input_ids": prompt(5)}
    lookup = {"prompt_lookup_num_tokens": 3} if looked_up else {}
    stats = target.generate(
        **inputs, **GREEDY, assistant_model=assistant, num_assistant_tokens=4, lossy_mode="topk",
        lossy_config={"k": 40, "inspect": True}, **lookup,
    ).lossy_stats  # fmt: skip
    assert stats.accepted_histogram[0] > 1 < sum(stats.accepted_histogram[1:4]), "some rounds keep nothing, some a part"
    assert (stats.looked_up > 0) == looked_up
    for text, tokens, logits in drafts:
        expected, own = by_transformers(target, assistant, text, len(tokens))
        torch.testing.assert_close(logits, own.float(), atol=TIE, rtol=TIE)
        assert tokens.tolist() == expected.tolist()
    assert len(drafts) > (3 if looked_up else 8)


@pytest.mark.parametrize("gamma", [2, 6])
@pytest.mark.parametrize("batched", [False, True])
def test_lossless_parity_with_drafts_of_the_length_that_is_asked_for(target, assistant, gamma, batched, drafts):
    inputs = padded() if batched else {"input_ids": prompt()}
    drafting = {"assistant_model": assistant, "num_assistant_tokens": gamma}
    _, ours = assert_lossless(target, drafting, **inputs, **GREEDY)
    assert {len(tokens) for _, tokens, _ in drafts} == set(range(1, gamma + 1))
    assert ours.lossy_stats.drafted > gamma * 20


def test_drafts_are_drawn_from_the_law_that_is_reported(target, assistant, drafts):
    """1,000 draws over five tokens: p > 1e-5 catches a law that is off by 0.1 anywhere."""
    torch.manual_seed(0)
    target.generate(
        prompt().repeat(500, 1), do_sample=True, top_k=5, temperature=3.0, max_new_tokens=4, eos_token_id=None,
        assistant_model=assistant, num_assistant_tokens=1, lossy_mode="lossless",
        prefix_allowed_tokens_fn=lambda _, ids: [9] if len(ids) == 7 else [*range(3, VOCAB)],
    )  # fmt: skip
    first = [(tokens, logits) for text, tokens, logits in drafts if len(text) == 8]
    law = first[0][1][0].double().softmax(-1)
    assert len(first) == 500
    assert (law > 0).sum() == 5
    for _, logits in first:
        torch.testing.assert_close(logits[0].double().softmax(-1), law, atol=1e-4, rtol=1e-4)
    counts = np.bincount([int(tokens[0]) for tokens, _ in first], minlength=VOCAB)
    assert chi_square_p(counts, np.where(law > 0, law, 0)) > 1e-5


def test_sampling_has_the_target_s_law(target, assistant):
    """Of 600 texts: p > 1e-5 catches a law that is off by 0.12 anywhere."""
    assert_second_token_has_the_law(target, {"assistant_model": assistant}, 4.0, rows=600)


def test_rules_of_two_laws_and_the_default_ends_of_drafts(target, assistant, default_ends):
    kwargs = {**GREEDY, "input_ids": prompt(), "assistant_model": assistant}
    stats = target.generate(**kwargs, lossy_mode="fsd", lossy_config={"inspect": True}).lossy_stats
    assert 0 < stats.drafted < 15 * stats.rounds
    assert all(record.scores.q is not None for record in stats.records if record.fate == "accepted")
    stopped = target.generate(**kwargs, lossy_mode="lossless", lossy_config={"stop_drafting": {"by": "confidence"}})
    assert stopped.lossy_stats.drafted < stats.drafted + 100


REFUSED = {
    "another target": ({"target": LlamaForCausalLM}, ["Gemma4Assistant", "LlamaForCausalLM"]),
    "another width": ({"width": 48}, ["48 units", "32"]),
    "a head on the draft's states": ({"lossy_mode": "sprinter"}, ["'sprinter'"]),
    "a tree": ({"lossy_config": {"tree": {}}}, ["`tree`"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_any_forward(target, assistant, case: str, monkeypatch):
    change, needles = dict(REFUSED[case][0]), REFUSED[case][1]
    target = tiny() if change.pop("target", None) else target
    monkeypatch.setattr(assistant.config, "backbone_hidden_size", change.pop("width", 32))
    with pytest.raises(LossyError) as caught:
        target.generate(prompt(), assistant_model=assistant, **{"lossy_mode": "lossless"} | change)
    assert all(needle in str(caught.value) for needle in needles)
