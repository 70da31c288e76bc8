"""Drafting with EAGLE-3 and DFlash heads and MTP layers: what is drafted, and that lossless decoding is lossless."""

from __future__ import annotations

import itertools

import pytest
import torch

from hf_lossy_assist import LossyUnsupportedError, LossyValueError
from hf_lossy_assist.drafting.chain import ChainDrafter
from hf_lossy_assist.generation.drafters.state_heads import LayerStates
from tests import dflash_heads, eagle3_heads, mtp_checkpoints
from tests.acceptors.fixtures import chi_square_p
from tests.dflash_heads import BLOCK, CONVENTIONS, random_dflash
from tests.eagle3_heads import random_head, trained_head
from tests.encoder_decoders import made
from tests.generation.drafters.uncached import dflash_logits, eagle3_logits
from tests.nightly import nightly, spread
from tests.parity import assert_lossless, assert_same_rows
from tests.tiny_models import ARCHITECTURES, LENGTHS, VOCAB, padded, prompt, prompts, tiny

CALL = {"max_new_tokens": 40, "eos_token_id": None}
TRAINED = {
    "EAGLE-3": eagle3_heads.trained_pair,
    "DFlash": dflash_heads.trained_pair,
    "MTP": mtp_checkpoints.trained_pair,
}
LIMITED = {"EAGLE-3": random_head, "DFlash": lambda: random_dflash(drafted=24)}
"""Heads that draft some of the tokens only."""
of_each_kind = pytest.mark.parametrize("kind", LIMITED)


# To train a head takes seconds.
SOME = {
    ("EAGLE-3", "llama"), ("EAGLE-3", "gemma3"), ("DFlash", "llama"), ("DFlash", "gpt2"), ("MTP", "mimo"),
    ("MTP", "qwen3_5"),
}  # fmt: skip
OTHERS = [("MTP", name) for name in mtp_checkpoints.FAMILIES if name != "qwen3_5_moe"]
of_some = pytest.mark.parametrize(
    ("kind", "architecture"), nightly([*itertools.product(LIMITED, ARCHITECTURES), *OTHERS], but=SOME)
)


@of_some
def test_lossless_greedy_texts_are_plain_ones(kind, architecture):
    target, head = TRAINED[kind](architecture)
    lengths = set()
    for seed, gamma in enumerate((1, 3, BLOCK - 1) if kind == "DFlash" else (1, 3, 1, 3)):
        drafting = {"assistant_model": head, "num_assistant_tokens": gamma}
        _, ours = assert_lossless(target, drafting, input_ids=prompt(seed=seed), **CALL)
        lengths |= {i for i, count in enumerate(ours.lossy_stats.accepted_histogram) if count}
    assert {0, 1, 3} <= lengths  # rounds end at once, early, and not at all


@of_some
def test_rows_of_a_batch_are_plain_texts_whatever_their_padding(kind, architecture):
    target, head = TRAINED[kind](architecture)
    call = {"do_sample": False, "max_new_tokens": 24, "eos_token_id": [5, 9], "return_dict_in_generate": True}
    ours = target.generate(**padded(), assistant_model=head, lossy_mode="lossless", num_assistant_tokens=4, **call)
    assert ours.lossy_stats.drafted > 0
    width = max(LENGTHS)
    for row, length in enumerate(LENGTHS):
        plain = target.generate(prompt(length, seed=row), output_logits=True, **call)
        text = ours.sequences[row : row + 1, width - length :][:, : plain.sequences.shape[1]]
        assert_same_rows(text, plain)


DRAFTING = [
    *(("EAGLE-3", name, {}) for name in ("llama", "gemma3")),
    *(("DFlash", "llama", settings) for settings in (*CONVENTIONS.values(), {"drafted": 24})),
    ("DFlash", "gpt2", {}),
]


@spread(drafting=DRAFTING, rows=[1, 4])
def test_every_draft_is_what_published_code_says_about_the_text_alone(drafting, rows, drafts):
    kind, architecture, settings = drafting
    target, head = TRAINED[kind](architecture)
    if settings:
        head = random_dflash(**settings)
    target.generate(
        **padded(LENGTHS[:rows]), assistant_model=head, num_assistant_tokens=4, do_sample=False, max_new_tokens=24,
        lossy_mode=["topk", "fsd"], eos_token_id=None if rows == 1 else 5,  # keeps some drafts, and wants to see q
        lossy_config={"topk": {"k": 24, "tolerance": 0.99}, "fsd": {"threshold": 1e-9}},
    )  # fmt: skip
    assert len(drafts) > 4
    for text, tokens, logits in drafts:
        if kind == "DFlash":
            expected = dflash_logits(target, head, text, BLOCK - 1)[: len(tokens)]
        else:
            expected = eagle3_logits(target, head, text, tokens)
        own = logits if head.d2t is None else logits[:, head.target_ids]
        torch.testing.assert_close(own, expected, atol=2e-4, rtol=2e-4)
        assert own.logsumexp(-1).allclose(logits.logsumexp(-1)), "other tokens are never drafted"
        assert tokens.tolist() == logits.argmax(-1).tolist()


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
    target, head = TRAINED["EAGLE-3"]()
    drafting, ids = {"assistant_model": head, "num_assistant_tokens": 5}, prompt()
    taken, take = [], LayerStates.pop
    assert_lossless(target, drafting, input_ids=ids)  # transformers leaves hooks of its own

    def hooks() -> int:
        return sum(len(x._forward_pre_hooks) + len(x._forward_hooks) for x in target.model.layers)

    def watch(self, wanted):
        taken.append((set(self._read), hooks()))
        return take(self, wanted)

    before = hooks()
    monkeypatch.setattr(LayerStates, "pop", watch)
    _, ours = assert_lossless(target, drafting, input_ids=ids, **CALL)
    assert all(x == ({0, 1, 2}, before + 3) for x in taken)
    assert len(taken) in (ours.lossy_stats.rounds - 1, ours.lossy_stats.rounds)
    assert ours.hidden_states is None

    def fail(self, wanted):
        raise RuntimeError("no")

    monkeypatch.setattr(LayerStates, "pop", fail)
    with pytest.raises(RuntimeError, match="no"):
        assert_lossless(target, drafting, input_ids=ids, **CALL)
    assert hooks() == before


@pytest.mark.parametrize("settings", [{}, {"repetition_penalty": 1.4}], ids=["at once", "one by one"])
def test_tokens_of_a_block_are_drawn_from_the_law_that_is_reported(settings, watch_drafts):
    """5,000 rows draw two tokens each: chi-square of the pairs at p > 1e-4. Under a penalty, q depends on the first."""
    target, head = tiny("llama"), random_dflash(output_multiplier=0.3)
    drafts = []
    watch_drafts(ChainDrafter, lambda draft, _, ids, *more: drafts.append((ids, draft)))
    target.generate(
        prompt(3).repeat(5_000, 1), assistant_model=head, lossy_mode="lossless", lossy_config={"seed": 1},
        do_sample=True, top_k=3, num_assistant_tokens=2, max_new_tokens=4, eos_token_id=None, **settings,
    )  # fmt: skip
    ids, draft = drafts[1]
    first = ids[:, -1].mode().values  # rows of one newest token have one law
    rows = (ids[:, -1] == first) & (ids[:, :-1] == ids[:1, :-1]).all(-1)
    tokens, law = draft.tokens[rows], draft.logits[rows].softmax(-1).double()
    assert len(tokens) > 1000
    counts = torch.zeros(VOCAB, VOCAB)
    counts.index_put_((tokens[:, 0], tokens[:, 1]), torch.ones(len(tokens)), accumulate=True)
    second = {int(x): law[i, 1] for i, x in enumerate(tokens[:, 0])}
    assert len({tuple(x.tolist()) for x in second.values()}) == (3 if settings else 1)
    joint = torch.stack([law[0, 0, x] * second.get(x, law[0, 1] * 0) for x in range(VOCAB)])
    assert chi_square_p(counts.flatten().numpy(), joint.flatten().numpy()) > 1e-4


@spread(
    settings=[
        {"repetition_penalty": 1.3},
        {"bad_words_ids": [[7], [11, 12]], "no_repeat_ngram_size": 3},
        {"num_assistant_tokens": "auto"},
        {"assistant_confidence_threshold": 0.4},
        {"num_assistant_tokens_schedule": "heuristic"},
        {"max_new_tokens": 2},
    ],
    case=[("EAGLE-3", {"input_ids": prompt()}), ("DFlash", padded()), ("DFlash", {"input_ids": prompt()})],
)
def test_settings_of_generation_leave_texts_plain(settings, case):
    kind, inputs = case
    target, head = TRAINED[kind]()
    of_drafts = {name: value for name, value in settings.items() if "assistant" in name}
    call = CALL | {name: value for name, value in settings.items() if name not in of_drafts}
    assert_lossless(target, {"assistant_model": head, **of_drafts}, **inputs, **call)


@of_each_kind
def test_rows_of_a_prompt_that_is_read_in_chunks_are_plain_texts(kind):
    target, head = TRAINED[kind]()
    call = CALL | padded() | {"prefill_chunk_size": 5}
    assert_lossless(target, {"assistant_model": head, "num_assistant_tokens": 3}, **call)


@pytest.mark.parametrize("cache", [None, "static"])
def test_slots_move_where_only_a_prompt_s_end_is_known(cache, watch_drafts):
    target, head = TRAINED["DFlash"]()
    unknown = set()

    def compare(draft, drafter, ids, layout, _):
        if len(draft) == 0:
            return
        unknown.add(first := drafter.source.runner._first)
        for i, (row, padding) in enumerate(zip(layout.rows, layout.left_padding, strict=True)):
            begin = padding + max(LENGTHS) - LENGTHS[row]
            expected = dflash_logits(target, head, ids[i, begin:], BLOCK - 1, max(0, first - begin))
            torch.testing.assert_close(draft.logits[i], expected[: len(draft)], atol=2e-4, rtol=2e-4)

    watch_drafts(ChainDrafter, compare)
    call = CALL | padded() | {"prefill_chunk_size": 5, "cache_implementation": cache, "do_sample": False}
    drafting = {"assistant_model": head, "num_assistant_tokens": BLOCK - 1}
    target.generate(**call, **drafting, lossy_mode="lossless", lossy_config={"inspect": True})
    assert len(unknown) > 2


def test_rows_of_a_batch_end_their_drafts_by_themselves(watch_drafts):
    target, head = TRAINED["DFlash"]()
    seen = []

    def compare(draft, _, ids, layout, remaining):
        for i, length in enumerate((draft.lengths or [len(draft)] * len(ids)) if len(draft) else ()):
            law = draft.logits[i].softmax(-1).gather(-1, draft.tokens[i][:, None])[:, 0]
            assert (law[: max(0, length - 1)] >= 0.3).all()
            assert length in (len(law), BLOCK - 1) or law[length - 1] < 0.3 or length >= remaining[i] - 1
            seen.append(length)

    watch_drafts(ChainDrafter, compare)
    target.generate(
        **padded(), assistant_model=head, lossy_mode=["lossless", "fsd"], do_sample=False, max_new_tokens=24,
        lossy_config={"fsd": {"threshold": 1e-9}}, assistant_confidence_threshold=0.3, num_assistant_tokens=BLOCK - 1,
        eos_token_id=None,
    )  # fmt: skip
    assert len(set(seen)) > 2


@of_each_kind
def test_half_precision_targets_and_heads_need_not_agree(kind):
    _, head = TRAINED[kind]()
    target = tiny("llama").to(torch.bfloat16)
    output = target.generate(prompts(), assistant_model=head, lossy_mode="lossless", max_new_tokens=12)
    assert output.shape[0] == 4


@of_each_kind
def test_what_it_costs_is_counted(kind):
    """DFlash: one forward per draft, over a whole block. EAGLE-3: over what a round has committed, then per token."""
    target, head = TRAINED[kind]()
    drafting = {"assistant_model": head, "num_assistant_tokens": 3}
    result = assert_lossless(target, drafting, input_ids=prompt(), **CALL)[1].lossy_stats
    rounds = result.rounds - 1  # in the first there is nothing to draft from
    if kind == "DFlash":
        assert result.draft_calls in (rounds, rounds - 1)  # perhaps in the end, no draft
        assert result.draft_tokens == BLOCK * result.draft_calls
    else:
        assert result.draft_calls <= 3 * rounds
        kept = sum(i * count for i, count in enumerate(result.accepted_histogram))
        assert result.draft_tokens <= 7 + kept + rounds + 2 * rounds


def test_a_draft_has_a_block_s_tokens_unless_told_otherwise():
    target, head = TRAINED["DFlash"]()
    output = target.generate(
        prompt(), assistant_model=head, lossy_mode="lossless", return_dict_in_generate=True, do_sample=False,
        lossy_config={"stop_drafting": {"by": "confidence", "threshold": 0}}, **CALL,
    )  # fmt: skip
    assert len(output.lossy_stats.accepted_histogram) == BLOCK


def test_more_than_a_block_is_refused():
    target, head = TRAINED["DFlash"]()
    with pytest.raises(LossyValueError, match="at most 5 with a DFlash head"):
        target.generate(prompt(), assistant_model=head, lossy_mode="lossless", num_assistant_tokens=BLOCK)


@of_each_kind
def test_rules_and_targets_that_it_can_t_serve_are_refused(pair, kind):
    target, head = TRAINED[kind]()
    with pytest.raises(LossyUnsupportedError, match="'sprinter' runs a head on the draft model's states"):
        target.generate(prompt(), assistant_model=head, lossy_mode="sprinter", lossy_head=pair.heads["verifier"])
    with pytest.raises(LossyUnsupportedError, match="T5ForConditionalGeneration"):
        made("t5").generate(prompt(), assistant_model=head, lossy_mode="lossless")


@of_each_kind
def test_processors_that_forbid_all_that_can_be_drafted_end_no_run(kind):
    target, head = tiny("llama"), LIMITED[kind]()
    allowed = sorted(set(range(3, VOCAB)) - set(head.target_ids.tolist()))
    output = target.generate(
        prompt(), assistant_model=head, lossy_mode="lossless", do_sample=True, max_new_tokens=12, eos_token_id=None,
        prefix_allowed_tokens_fn=lambda row, ids: allowed,
    )  # fmt: skip
    assert set(output[0, 7:].tolist()) <= set(allowed)


def test_a_head_without_embeddings_uses_the_target_s():
    target = tiny("llama")
    head = trained_head(target, prompts(), own_embeddings=False)
    _, ours = assert_lossless(target, {"assistant_model": head, "num_assistant_tokens": 5}, input_ids=prompts(), **CALL)
    assert ours.lossy_stats.accepted > 0
