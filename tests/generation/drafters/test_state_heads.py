"""What DFlash heads, EAGLE-3 heads and MTP layers have in common: any call, look-ups first, and any target."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import CompileConfig, DynamicCache

from hf_lossy_assist import quantize_draft
from hf_lossy_assist.compat.caches import CACHE
from hf_lossy_assist.compat.probe import obstacle_to_rollback
from hf_lossy_assist.generation.drafters.dflash import BlockDrafter
from hf_lossy_assist.generation.drafters.lookup_first import price_of
from hf_lossy_assist.generation.drafters.mtp import mtp_of
from hf_lossy_assist.models import recurrent
from tests import dflash_heads, eagle3_heads
from tests.acceptors.fixtures import assert_texts_have_the_law
from tests.architectures import family
from tests.dflash_heads import BLOCK, random_dflash, trained_dflash
from tests.generation.drafters.uncached import Reference, dflash_logits, eagle3_logits
from tests.graphs import Backend, Recorder, record
from tests.mtp_checkpoints import FAMILIES, loaded, write
from tests.nightly import nightly, spread
from tests.parity import assert_lossless, assert_same_rows
from tests.tiny_models import VOCAB, padded, prompt, resized, tiny

ENDS = [9, 20, 30]
INPUTS = {
    "one": {"input_ids": prompt(seed=1), "max_new_tokens": 24, "eos_token_id": None},
    "batch": padded((7, 3, 5)) | {"max_new_tokens": 24, "eos_token_id": ENDS},
}
LOOKUP = {"prompt_lookup_num_tokens": 7}


@pytest.fixture(scope="module")
def heads(tmp_path_factory) -> Callable:
    """Return a target, the keywords by which its head drafts, and what the head says without a cache."""

    @functools.cache
    def make(name: str):
        if name == "DFlash":
            target, head = dflash_heads.trained_pair()
            return target, {"assistant_model": head}, lambda text, drafted: dflash_logits(target, head, text, BLOCK - 1)
        if name == "EAGLE-3":
            target, head = eagle3_heads.trained_pair()

            def logits(text: Tensor, drafted: Tensor) -> Tensor:
                found = torch.full((len(drafted), VOCAB), -torch.inf)
                found[:, head.target_ids] = eagle3_logits(target, head, text, drafted)
                return found

            return target, {"assistant_model": head}, logits
        folder = write("mimo", tmp_path_factory.mktemp("mimo"))
        target = loaded(folder)
        reference = Reference(load_file(folder / "model.safetensors"), FAMILIES["mimo"], target.config)
        return target, {"use_mtp": True}, functools.partial(reference.logits, target)

    return make


def assert_said(drafts, expected: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Compare all drafts with what a function says about each row's text alone."""
    assert drafts
    for text, tokens, logits in drafts:
        said = expected(text, tokens)[: len(tokens)]
        torch.testing.assert_close(logits.softmax(-1), said.softmax(-1), atol=1e-4, rtol=0)
        assert tokens.tolist() == logits.argmax(-1).tolist()


def counted(target, drafting: dict, **call):
    """Compare with plain ``generate()``; return our statistics, in which every token has been counted."""
    drafting = {"lossy_config": {"inspect": True}, "num_assistant_tokens": 4} | drafting
    _, ours = assert_lossless(target, drafting, **call)
    return counts(ours, call)


def counts(output, call: dict):
    """Return a call's statistics, in which every token of every row has been counted."""
    rows, width = output.lossy_stats.rows, call["input_ids"].shape[1]
    for row, text in zip(rows, output.sequences[:, width:], strict=True):
        ended = [i for i, token in enumerate(text.tolist()) if token in (call["eos_token_id"] or ())]
        assert row.accepted + row.corrected + row.bonus == (ended[0] + 1 if ended else len(text))
    return output.lossy_stats


SETTINGS = {
    "a constant length": {},
    "a schedule": {"num_assistant_tokens_schedule": "heuristic"},
    "confidence": {"assistant_confidence_threshold": 0.3},
    "one token": {"num_assistant_tokens": 1},
    "a stop": {"lossy_config": {"inspect": True, "stop_drafting": {"by": "acceptance", "threshold": 0.9}}},
}


@spread(
    case=[*(("DFlash", x) for x in SETTINGS), *((name, x) for name in ("EAGLE-3", "MTP") for x in list(SETTINGS)[:2])],
    inputs=INPUTS,
)
def test_a_text_is_looked_up_first(case, inputs, heads, drafts, looks_up):
    """Also where some rows look up and others don't, and where rows end at different times."""
    name, setting = case
    target, drafting, expected = heads(name)
    stats = counted(target, drafting | LOOKUP | SETTINGS[setting], **INPUTS[inputs])
    assert_said(drafts, expected)
    assert 5 < stats.looked_up < stats.drafted


@spread(name=["DFlash", "EAGLE-3"], inputs=INPUTS)
def test_a_text_is_looked_up_first_in_graphs(name, inputs, heads, drafts, looks_up, monkeypatch):
    target, drafting, expected = heads(name)
    recorder = record(monkeypatch, Recorder())
    stats = counted(target, drafting | LOOKUP, **INPUTS[inputs] | {"max_new_tokens": 40})
    assert_said(drafts, expected)
    assert recorder.replays
    assert 5 < stats.looked_up < stats.drafted


def test_drawn_texts_have_the_target_s_law_where_they_are_looked_up_first(looks_up):
    """3,000 texts of 4 tokens, drawn from a product of marginals: chi-square at p > 1e-4."""
    target, head = resized(tiny("llama"), 5), random_dflash(layers={"vocab_size": 5}, output_multiplier=0.2)
    output = target.generate(
        torch.tensor([[1, 3, 2, 1, 3, 2]]).repeat(3000, 1), assistant_model=head, lossy_mode="lossless", do_sample=True,
        lossy_config={"seed": 0}, top_k=4, temperature=1.3, max_new_tokens=4, num_assistant_tokens=2, **LOOKUP,
        return_dict_in_generate=True, eos_token_id=None,
    )  # fmt: skip
    assert 300 < output.lossy_stats.looked_up < output.lossy_stats.drafted - 300
    assert_texts_have_the_law(target, [1, 3, 2, 1, 3, 2], output.sequences, 4, 4, temperature=1.3)


def test_a_head_costs_what_it_reads(heads):
    target, _, _ = heads("MTP")
    layer, head = mtp_of(target), target.lm_head.weight.numel()
    of_target = sum(x.numel() for x in target.parameters()) - target.model.embed_tokens.weight.numel()
    own = sum(x.numel() for x in layer.parameters())
    assert price_of(layer, target) == pytest.approx((own + head) / of_target, rel=0.02)  # but for biases


def test_a_head_s_own_lm_head_costs_once():
    target, head = tiny("llama"), random_dflash(drafted=40)
    of_target = sum(x.numel() for x in target.parameters()) - target.model.embed_tokens.weight.numel()
    assert price_of(head, target) == pytest.approx(sum(x.numel() for x in head.parameters()) / of_target)


HYBRIDS = ["qwen3_next", "falcon_h1", "mamba2"]
BOTH_WAYS = [("qwen3_next", 1), ("mamba2", 32)]


@pytest.mark.parametrize(
    ("name", "replay"), nightly([("qwen3_next", 1), *((name, 32) for name in HYBRIDS)], but=BOTH_WAYS)
)
def test_dflash_drafts_for_targets_with_recurrent_states(name, replay, drafts, looks_up, monkeypatch):
    """They read kept tokens with the next draft, or before it; rows are decoded one after another."""
    target = family(name)[0]
    if obstacle_to_rollback(target, several=True) is not None:
        pytest.skip("this version's rows don't go on from a state alone as in a batch")
    monkeypatch.setattr(recurrent, "LONGEST_REPLAY", replay)
    head = trained_dflash(target, prompt(seed=1), steps=15, target_layers=(1,))
    one, batch = INPUTS["one"], INPUTS["one"] | padded((3, 9))
    for inputs, more in ((one, {}), (one, {"speculation_type": "dflash"}), (batch, LOOKUP)):
        stats = counted(target, {"assistant_model": head} | more, **inputs)
        assert stats.accepted > 3 or more == LOOKUP
    assert stats.looked_up
    assert len(drafts) > 10
    assert_said(drafts, lambda text, drafted: dflash_logits(target, head, text, BLOCK - 1))


@pytest.mark.parametrize("name", ["llama", *HYBRIDS[:1], "mistral"])
def test_dflash_goes_on_from_a_cache_that_holds_the_beginning(name, drafts):
    """The states of the beginning are unknown, so the head says what it would say if nothing stood before."""
    target = family(name)[0] if name in HYBRIDS else tiny(name)
    head, text = random_dflash(), prompt(9, seed=1)
    plain = target.generate(text, max_new_tokens=20, eos_token_id=None, do_sample=False, return_dict_in_generate=True,
                            output_logits=True)  # fmt: skip
    cache = DynamicCache(config=target.config)
    with torch.no_grad():
        target(text[:, :6], **{CACHE: cache})
    ours = target.generate(
        text, **{CACHE: cache}, assistant_model=head, lossy_mode="lossless", lossy_config={"inspect": True},
        max_new_tokens=20, eos_token_id=None, do_sample=False, num_assistant_tokens=3,
    )  # fmt: skip
    assert_same_rows(ours, plain)
    assert len(drafts) > 5
    assert_said(drafts, lambda text, drafted: dflash_logits(target, head, text, BLOCK - 1, unknown=6))


def test_a_schedule_stays_within_a_block(watch_drafts):
    """Else it would add on where no block has more tokens, and come back late."""
    target, head = dflash_heads.trained_pair()
    sizes = []
    watch_drafts(BlockDrafter, lambda draft, drafter, *_: sizes.append(drafter.size))
    limits = {"tolerance": 1.0, "k": VOCAB}
    target.generate(
        prompt(), assistant_model=head, lossy_mode="topk", num_assistant_tokens_schedule="heuristic", max_new_tokens=60,
        lossy_config=limits, num_assistant_tokens=2, eos_token_id=None, do_sample=False,
    )  # fmt: skip
    assert len(sizes) > 8
    assert max(sizes) == BLOCK - 1


def test_a_batch_s_rounds_compile_nothing_anew():
    target, head = tiny("llama"), dflash_heads.trained_pair()[1]  # nobody has asked this target for states
    backend = Backend()
    counted(
        target, {"assistant_model": head, "lossy_config": {"compile": True}}, **INPUTS["batch"],
        compile_config=CompileConfig(backend=backend),
    )  # fmt: skip
    assert backend.graphs == 4  # the target's, what a round has committed, a block, and the LM head


def test_a_quantised_target_s_embeddings_and_head_are_read(drafts):
    whole, head = dflash_heads.trained_pair()
    target = quantize_draft(whole, "int8")
    assert counted(target, {"assistant_model": head}, **INPUTS["one"]).accepted > 3
    assert_said(drafts, lambda text, drafted: dflash_logits(target, head, text, BLOCK - 1))
