"""Drafting with EAGLE-3 heads: what is drafted, and that lossless decoding stays lossless."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache

from hf_lossy_assist import LossyUnsupportedError
from hf_lossy_assist.compat.caches import CACHE
from hf_lossy_assist.drafting.chain import ChainDrafter
from hf_lossy_assist.drafting.state_source import LayerStates
from tests.drafting.uncached import eagle3_logits
from tests.eagle3_heads import random_head, trained_head, trained_pair
from tests.encoder_decoders import made
from tests.parity import assert_same_text
from tests.tiny_models import ARCHITECTURES, VOCAB, prompt, tiny

GREEDY = {"do_sample": False, "return_dict_in_generate": True, "output_logits": True, "max_new_tokens": 40}


def prompts(rows: int = 4) -> torch.Tensor:
    return torch.cat([prompt(seed=seed) for seed in range(rows)])


def both(target, head, ids=None, gamma=5, **kwargs):
    """Return the outputs of plain generate() and of ours."""
    ids, kwargs = prompt() if ids is None else ids, GREEDY | kwargs
    plain = target.generate(ids, **kwargs)
    ours = target.generate(ids, assistant_model=head, lossy_mode="lossless", num_assistant_tokens=gamma, **kwargs)
    return plain, ours


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_lossless_greedy_texts_are_plain_ones(architecture):
    target, head = trained_pair(architecture)
    lengths = set()
    for seed, gamma in enumerate((1, 3, 1, 3)):
        plain, ours = both(target, head, prompt(seed=seed), gamma, eos_token_id=None)
        assert_same_text(ours.sequences, plain)
        lengths |= {i for i, count in enumerate(ours.lossy_stats.accepted_histogram) if count}
    assert {0, 1, 3} <= lengths  # rounds end at once, early, and not at all


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rows_of_a_batch_are_plain_texts_whatever_their_padding(architecture):
    target, head = trained_pair(architecture)
    lengths = (7, 3, 5, 6)
    ids, mask = prompts(), torch.ones(4, 7, dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, : 7 - length], mask[row, : 7 - length] = 0, 0
    kwargs = GREEDY | {"eos_token_id": [5, 9], "attention_mask": mask}
    ours = target.generate(ids, assistant_model=head, lossy_mode="lossless", num_assistant_tokens=4, **kwargs)
    assert ours.lossy_stats.accepted > 0
    for row, length in enumerate(lengths):
        alone = ids[row : row + 1, -length:]
        plain = target.generate(alone, **GREEDY | {"eos_token_id": [5, 9]})
        text = ours.sequences[row : row + 1, 7 - length :][:, : plain.sequences.shape[1]]
        assert_same_text(text, plain)


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gpt2"])
@pytest.mark.parametrize("rows", [1, 4])
def test_every_draft_is_what_the_head_says_about_the_text_alone(architecture, rows, monkeypatch):
    target, head = trained_pair(architecture)
    compared, propose = [], ChainDrafter.propose

    def compare(self, ids, layout, remaining):
        draft = propose(self, ids, layout, remaining)
        for i, padding in enumerate(layout.left_padding):
            n = len(draft) if draft.lengths is None else draft.lengths[i]
            if n == 0:
                continue
            expected = eagle3_logits(target, head, ids[i, padding:], draft.tokens[i, :n])
            torch.testing.assert_close(draft.logits[i, :n][:, head.target_ids], expected, atol=2e-4, rtol=2e-4)
            law = draft.logits[i, :n].softmax(-1)
            assert law[:, head.target_ids].sum(-1).allclose(torch.ones(n))
            assert set(law.nonzero()[:, 1].tolist()) <= set(head.target_ids.tolist())
            assert draft.tokens[i, :n].tolist() == draft.logits[i, :n].argmax(-1).tolist()
            compared.append(len(ids))
        return draft

    monkeypatch.setattr(ChainDrafter, "propose", compare)
    plain = target.generate(prompts(rows), do_sample=False, max_new_tokens=48, eos_token_id=None)
    target.generate(
        prompts(rows), assistant_model=head, num_assistant_tokens=4, do_sample=False, max_new_tokens=48,
        lossy_mode=["lossless", "fsd"], lossy_config={"fsd": {"threshold": 1e-9}},  # which wants to see q
        eos_token_id=None if rows == 1 else plain[1, 15].item(),
    )  # fmt: skip
    assert len(compared) > 8
    assert rows == 1 or len(set(compared)) > 1  # rows have ended, and left


@torch.no_grad()
@pytest.mark.parametrize(("architecture", "norm"), [("llama", "norm"), ("gemma3", "norm"), ("gpt2", "ln_f")])
def test_states_are_those_that_enter_layers_and_the_last_has_not_been_normed(architecture, norm):
    target, ids = tiny(architecture), prompts(2)
    states = LayerStates(target, (0, 1, 2))
    with states.watched():
        expected = target(ids, output_hidden_states=True).hidden_states
        first, second, last = states.pop().chunk(3, dim=-1)
    assert torch.equal(first, expected[0])
    assert torch.equal(second, expected[1])
    torch.testing.assert_close(getattr(target.get_decoder(), norm)(last), expected[2])


def test_only_what_the_head_reads_is_kept_and_hooks_do_not_stay(monkeypatch):
    target, head = trained_pair()
    taken, take = [], LayerStates.pop
    both(target, head)  # transformers leaves hooks of its own

    def hooks() -> int:
        return sum(len(x._forward_pre_hooks) + len(x._forward_hooks) for x in target.model.layers)

    def watch(self, outputs, wanted):
        taken.append((set(self._read), hooks()))
        return take(self, outputs, wanted)

    before = hooks()
    monkeypatch.setattr(LayerStates, "pop", watch)
    _, ours = both(target, head, eos_token_id=None)
    assert all(x == ({0, 1, 2}, before + 3) for x in taken)
    assert len(taken) in (ours.lossy_stats.rounds - 1, ours.lossy_stats.rounds)
    assert ours.hidden_states is None

    def fail(self, outputs, wanted):
        raise RuntimeError("no")

    monkeypatch.setattr(LayerStates, "pop", fail)
    with pytest.raises(RuntimeError, match="no"):
        both(target, head, eos_token_id=None)
    assert hooks() == before


@pytest.mark.parametrize(
    "settings",
    [
        {"repetition_penalty": 1.3},
        {"bad_words_ids": [[7], [11, 12]], "no_repeat_ngram_size": 3},
        {"num_assistant_tokens": "auto"},
        {"assistant_confidence_threshold": 0.4},
        {"num_assistant_tokens_schedule": "heuristic"},
        {"max_new_tokens": 2},
    ],
)
def test_settings_of_generation_leave_texts_plain(settings):
    target, head = trained_pair()
    plain = target.generate(prompt(), **GREEDY | {"eos_token_id": None} | _of_plain(settings))
    ours = target.generate(
        prompt(), assistant_model=head, lossy_mode="lossless", **GREEDY | {"eos_token_id": None} | settings
    )
    assert_same_text(ours.sequences, plain)


def _of_plain(settings: dict) -> dict:
    return {name: value for name, value in settings.items() if "assistant" not in name}


def test_processors_that_forbid_all_that_can_be_drafted_end_no_run():
    target, head = tiny("llama"), random_head()
    allowed = sorted(set(range(3, VOCAB)) - set(head.target_ids.tolist()))
    output = target.generate(
        prompt(), assistant_model=head, lossy_mode="lossless", do_sample=True, max_new_tokens=12, eos_token_id=None,
        prefix_allowed_tokens_fn=lambda row, ids: allowed,
    )  # fmt: skip
    assert set(output[0, 7:].tolist()) <= set(allowed)


def test_a_cache_of_the_caller_s_is_gone_on_from():
    target, head = trained_pair()
    ids = prompt(seed=1)
    plain = target.generate(ids, **GREEDY, eos_token_id=None)
    cache = DynamicCache(config=target.config)
    with torch.no_grad():
        target(ids[:, :4], **{CACHE: cache})
    ours = target.generate(
        ids, **{CACHE: cache}, assistant_model=head, lossy_mode="lossless", **GREEDY, eos_token_id=None
    )
    assert_same_text(ours.sequences, plain)
    assert ours.lossy_stats.drafted > 0


def test_a_head_without_embeddings_uses_the_target_s():
    target = tiny("llama")
    head = trained_head(target, prompts(), own_embeddings=False)
    _, ours = both(target, head, prompts(), eos_token_id=None)
    assert ours.lossy_stats.accepted > 0


def test_half_precision_targets_and_heads_need_not_agree():
    _, head = trained_pair()
    target = tiny("llama").to(torch.bfloat16)
    output = target.generate(prompts(), assistant_model=head, lossy_mode="lossless", max_new_tokens=12)
    assert output.shape[0] == 4


def test_what_it_costs_is_counted():
    """One forward over what a round has committed, one less than γ over a token each."""
    target, head = trained_pair()
    _, ours = both(target, head, gamma=3, eos_token_id=None, max_new_tokens=30)
    result = ours.lossy_stats
    rounds = result.rounds - 1  # in the first there is nothing to draft from
    assert result.draft_calls <= 3 * rounds
    kept = sum(i * count for i, count in enumerate(result.accepted_histogram))
    assert result.draft_tokens <= 7 + kept + rounds + 2 * rounds


def test_rules_that_read_a_draft_model_s_states_are_refused(pair):
    target, head = trained_pair()
    with pytest.raises(LossyUnsupportedError, match="'sprinter' runs a head on the draft model's states"):
        target.generate(prompt(), assistant_model=head, lossy_mode="sprinter", lossy_head=pair.heads["verifier"])


def test_encoder_decoder_targets_are_refused():
    with pytest.raises(LossyUnsupportedError, match="T5ForConditionalGeneration"):
        made("t5").generate(prompt(), assistant_model=random_head(), lossy_mode="lossless")
