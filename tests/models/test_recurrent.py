"""Targets and drafts with recurrent states: the same text as plain ``generate()``, token for token."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache

from hf_lossy_assist import LossyUnsupportedError
from hf_lossy_assist.compat.caches import CACHE, CacheSnapshot, new_cache
from hf_lossy_assist.compat.models import has_recurrent_state
from hf_lossy_assist.compat.probe import ask, obstacle_to_rollback
from hf_lossy_assist.models import recurrent as replaying
from tests.acceptors.table import judge_head
from tests.architectures import STATES, family, made
from tests.chains import chain, commit
from tests.nightly import nightly
from tests.parity import assert_lossless, assert_same_rows
from tests.tiny_models import noisy_copy, padded, prompt, tiny

GREEDY = {"do_sample": False, "return_dict_in_generate": True, "output_logits": True, "eos_token_id": None}
ALWAYS = ("mamba2", "bamba", "falcon_h1", "granitemoehybrid", "qwen3_next", "qwen3_5_text")
"""Targets in every version of transformers that has them; as drafts, also those that read one token after another."""
ALWAYS_DRAFTS = (*ALWAYS, "mamba", "falcon_mamba", "jamba", "zamba", "lfm2", "lfm2_moe", "zaya")


# Both scans, alone and beside attention, a gated delta rule, a convolution, an RG-LRU, and lightning attention.
KINDS = ("mamba", "mamba2", "falcon_h1", "qwen3_next", "lfm2", "recurrent_gemma", "minimax", "rwkv")


@pytest.fixture(scope="module", params=nightly(STATES, but=KINDS))
def model(request):
    return family(request.param)[0]


def test_target_and_draft_of_every_family_in_a_padded_batch(model):
    if obstacle_to_rollback(model, several=True) is not None:
        pytest.skip("is refused: see below")
    inputs = padded((3, 9))
    drafting = {"assistant_model": noisy_copy(model, 0.003), "num_assistant_tokens": 3}
    _, ours = assert_lossless(model, drafting, **inputs, max_new_tokens=14, eos_token_id=None)
    assert ours.lossy_stats.accepted


@pytest.mark.parametrize(("names", "several"), [(ALWAYS, True), (ALWAYS_DRAFTS, False)])
def test_families_that_go_on_from_a_state_in_every_version(names, several):
    refusals = [obstacle_to_rollback(family(name)[0], several) for name in names]
    assert set(refusals) == {None}


def test_drafts_are_what_the_model_itself_goes_on_with(model):
    if obstacle_to_rollback(model, several=False) is not None:
        pytest.skip("is refused: see below")
    drafter, text = chain(model, 3), prompt(6)
    for kept in (0, 2, 3):  # nothing, some and all of the draft before it
        expected = chain(model, 3).propose(text, None, [9]).tokens
        tokens = drafter.propose(text, None, [9]).tokens.clone()
        assert tokens.equal(expected)
        before, own = text, (tokens[:, kept : kept + 1] if kept < 3 else text[:, :1]) + 1
        text = torch.cat([text, tokens[:, :kept], own], 1) % 64
        drafter.observe(commit(text, before, 3))


def test_families_that_do_not_go_on_from_a_state_are_refused_by_name(model):
    refusal = obstacle_to_rollback(model, several=True)
    if refusal is None:
        pytest.skip("goes on from a state")
    with pytest.raises(LossyUnsupportedError, match=f"{type(model).__name__} keeps (a recurrent|its) state"):
        model.generate(prompt(), prompt_lookup_num_tokens=3, lossy_mode="lossless")
    if obstacle_to_rollback(model, several=False) is not None:
        with pytest.raises(LossyUnsupportedError, match=f"assistant_model.*{type(model).__name__}"):
            tiny().generate(prompt(), assistant_model=model, lossy_mode="lossless")


HYBRID = "qwen3_next"


@pytest.fixture(scope="module")
def hybrid():
    model = family(HYBRID)[0]
    if obstacle_to_rollback(model, several=True) is not None:
        pytest.skip("this version's rows don't go on from a state alone as in a batch")
    return model


@pytest.mark.parametrize("longest", [0, 4, 32])
def test_however_long_a_replay_may_be(monkeypatch, hybrid, longest):
    monkeypatch.setattr(replaying, "LONGEST_REPLAY", longest)
    drafting = {"assistant_model": noisy_copy(hybrid, 0.01)}
    _, ours = assert_lossless(hybrid, drafting, inputs=prompt(), max_new_tokens=20, eos_token_id=None)
    assert 0 < ours.lossy_stats.acceptance_rate < 1


@pytest.mark.parametrize(
    ("mode", "config"), [("dropmatch", {"dropout": 1e-9}), ("dropmatch", {}), ("judge", {"threshold": 0.0})]
)
@pytest.mark.parametrize("lengths", [(40,), (3, 9)], ids=["one", "batch"])
def test_rules_that_read_what_enters_the_head(hybrid, mode, config, lengths):
    """They read the forward of the verified tokens, not an earlier one; both settings are lossless or nearly so."""
    draft = noisy_copy(hybrid, 0.01)
    head = {"lossy_head": judge_head(hybrid, draft)} if mode == "judge" else {}
    plain = hybrid.generate(**padded(lengths), max_new_tokens=12, **GREEDY)
    ours = hybrid.generate(
        **padded(lengths), max_new_tokens=12, **GREEDY, **head, assistant_model=draft, lossy_mode=mode,
        lossy_config={"seed": 0, **config},
    )  # fmt: skip
    assert ours.lossy_stats.drafted
    if config:
        assert_same_rows(ours.sequences, plain)


def test_prompt_lookup(hybrid):
    ids = prompt(5).repeat(1, 3)
    drafting = {"prompt_lookup_num_tokens": 3}
    _, ours = assert_lossless(hybrid, drafting, inputs=ids, max_new_tokens=16, eos_token_id=None)
    assert ours.lossy_stats.drafted


def test_a_cache_is_handed_on_from_turn_to_turn(hybrid):
    text, cache = prompt(9), DynamicCache(config=hybrid.config)
    plain = hybrid.generate(text, max_new_tokens=24, **GREEDY)
    lossy = {"assistant_model": noisy_copy(hybrid, 0.01), "lossy_mode": "lossless"}
    for extra in (lossy, lossy, {}):  # ours twice, then plain, all on one cache
        out = hybrid.generate(
            text, attention_mask=torch.ones_like(text), **{CACHE: cache}, max_new_tokens=8, **GREEDY, **extra
        )
        text = out.sequences
        assert getattr(out, CACHE) is cache
        assert cache.get_seq_length() == text.shape[1] - 1
    assert text.equal(plain.sequences)


@pytest.mark.parametrize("lengths", [(7,), (3, 9)], ids=["one", "batch"])
def test_recorded_outputs_are_those_of_plain_generation(monkeypatch, hybrid, lengths):
    monkeypatch.setattr(hybrid.config, "_attn_implementation", "eager")  # which alone returns weights
    asked = padded(lengths) | GREEDY | {"output_hidden_states": True, "output_attentions": True, "max_new_tokens": 6}
    plain, ours = assert_lossless(hybrid, {"assistant_model": noisy_copy(hybrid, 0.01)}, **asked)
    for name in ("hidden_states", "attentions"):
        for expected, recorded in zip(plain[name], ours[name], strict=True):
            for a, b in zip(expected, recorded, strict=True):
                assert a.shape == b.shape
                for row, length in enumerate(lengths):  # states of padding are nobody's business
                    own, other = (x[row][..., -length:, :] for x in (a, b))
                    torch.testing.assert_close(own, other, atol=1e-4, rtol=1e-4)


def test_a_padded_row_by_itself_is_read_as_plain_generation_reads_it(hybrid):
    inputs = {name: values[:1] for name, values in padded((3, 9)).items()}
    drafting = {"assistant_model": noisy_copy(hybrid, 0.01)}
    assert_lossless(hybrid, drafting, **inputs, max_new_tokens=12, eos_token_id=None)


def test_a_cache_is_brought_back_any_number_of_times(hybrid):
    cache, ids = new_cache(hybrid), prompt(8)

    def logits():
        return hybrid(input_ids=ids[:, 5:], **{CACHE: cache}, use_cache=True).logits

    with torch.no_grad():
        hybrid(input_ids=ids[:, :5], **{CACHE: cache}, use_cache=True)
        snapshot = CacheSnapshot(cache)
        first = logits()
        assert not logits().equal(first)
        for _ in range(2):
            snapshot.restore(cache)
            assert cache.get_seq_length() == 5
            assert logits().equal(first)


def test_a_class_with_a_configuration_is_asked_once(monkeypatch, hybrid):
    assert has_recurrent_state(hybrid)
    answer, twin = ask(hybrid), made(HYBRID).float()
    monkeypatch.setattr(type(hybrid), "forward", None)
    assert ask(hybrid) is ask(twin) is answer
