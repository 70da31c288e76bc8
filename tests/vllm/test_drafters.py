"""Drafts by other ways than a draft model: found in the text, or by a head on the target."""

from __future__ import annotations

import copy
from importlib.util import find_spec

import pytest
import torch
from torch import nn
from vllm.exceptions import VLLMValidationError

from hf_lossy_assist import pairs, save_int8_draft
from hf_lossy_assist.integrations.vllm.inside import rules
from tests.vllm.asking import answers, asking, prompts_of, texts
from tests.vllm.conftest import BY_MODEL, GAMMA, start

LOOKUP = {"method": "ngram", "num_speculative_tokens": GAMMA, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
EAGLE3 = {"method": "eagle3", "model": str(pairs.hub_cards() / "arithmetic-eagle3"), "num_speculative_tokens": GAMMA}
SUFFIX = {"method": "suffix", "num_speculative_tokens": GAMMA}
needs_arctic = pytest.mark.skipif(not find_spec("arctic_inference"), reason="suffix drafts need arctic-inference")


@pytest.mark.parametrize("found", [LOOKUP, pytest.param(SUFFIX, marks=needs_arctic)], ids=lambda x: x["method"])
def test_lossless_texts_are_the_engine_s_own_and_lossy_ones_are_not(found, pair, monkeypatch):
    engine, prompts = start({"lossy": {}}, speculative_config=found), prompts_of(pair)
    assert texts(engine, prompts, asking("lossless")) == texts(engine, prompts, asking())
    seen = []
    decide = rules.decide_group
    monkeypatch.setattr(rules, "decide_group", lambda *args: seen.append(args[1]) or decide(*args))
    outputs = [x.outputs[0] for x in answers(engine, prompts, asking("topk", {"k": 8}))]
    assert sum(output.spec_decode_metrics.lossy["accepted_lossy"] for output in outputs) > 0
    assert all(step.draft_probs is None for step in seen)
    with pytest.raises(VLLMValidationError, match="draft_sample_method"):
        texts(engine, prompts, asking("fsd"))


@pytest.mark.parametrize("drafted", ["greedy", "probabilistic"])
def test_eagle3_drafts_are_decided_by_rules(drafted, pair):
    engine = start({"lossy": {}}, speculative_config=EAGLE3 | {"draft_sample_method": drafted})
    prompts = prompts_of(pair)
    assert texts(engine, prompts, asking("lossless")) == texts(engine, prompts, asking())
    outputs = [x.outputs[0] for x in answers(engine, prompts, asking("topk", {"k": 8}))]
    assert all(output.spec_decode_metrics.lossy["accepted_lossy"] > 0 for output in outputs)
    if drafted == "probabilistic":
        assert texts(engine, prompts, asking("lenience", {"factor": 0.2})) != texts(engine, prompts, asking("lossless"))


def _at_nearest_level(rows: torch.Tensor) -> torch.Tensor:
    scale = rows.abs().amax(-1, keepdim=True) / 127
    return (rows / scale).round() * scale


def _with_rounding(draft, head: bool):
    """Round every row of a weight, and every input of its layer, to 255 levels; keep them in float32."""
    draft = copy.deepcopy(draft)
    for module in draft.modules():
        if isinstance(module, nn.Linear) and (head or module is not draft.lm_head):
            module.weight = nn.Parameter(_at_nearest_level(module.weight.detach()))  # the embeddings keep theirs
            module.register_forward_pre_hook(lambda _, args: (_at_nearest_level(args[0]),))
    return draft


@torch.no_grad()
@pytest.mark.parametrize(("tied", "head"), [(True, True), (False, True), (True, False)])
def test_a_rounded_draft_has_the_distributions_of_its_rounded_weights(tied, head, pair, tmp_path, monkeypatch):
    draft = copy.deepcopy(pair.draft)
    if not tied:
        draft.lm_head.weight = nn.Parameter(draft.lm_head.weight * torch.linspace(0.5, 1.5, 128))
        draft.config.tie_word_embeddings = False
    save_int8_draft(draft, tmp_path, lm_head=head)
    engine = start({"lossy": {}}, speculative_config=BY_MODEL | {"model": str(tmp_path)})
    seen = []
    decide = rules.decide_group
    monkeypatch.setattr(rules, "decide_group", lambda *args: seen.append(args[1]) or decide(*args))
    [prompt] = prompts_of(pair, 1)
    [text] = texts(engine, [prompt], asking("lossless"))
    step = next(step for step in seen if len(step.tokens) == GAMMA)
    ids = torch.tensor([[*prompt, text[0], *step.tokens[:-1].tolist()]])
    rounded, other = _with_rounding(draft, head), _with_rounding(draft, not head)
    # Other kernels bring a few inputs to the next level, so whole models agree less than their LM heads.
    log_q = rounded(ids).logits[0, -GAMMA:].log_softmax(-1)
    assert (log_q - step.draft_probs.log()).square().mean().sqrt() < 0.05
    states = torch.randn(GAMMA, 128, generator=torch.Generator().manual_seed(0))
    logits = engine.llm_engine.model_executor.driver_worker.worker.model_runner.drafter.model.compute_logits(states)
    assert torch.allclose(logits, rounded.lm_head(states), atol=1e-4)
    assert not torch.allclose(logits, other.lm_head(states), atol=1e-2)


def test_a_rounded_draft_drafts_like_its_original(engine, pair, tmp_path):
    save_int8_draft(pair.draft, tmp_path)
    rounded = start({"lossy": {}}, speculative_config=BY_MODEL | {"model": str(tmp_path)})
    prompts = prompts_of(pair)
    assert texts(rounded, prompts, asking("lossless")) == texts(engine, prompts, asking("lossless"))

    def kept(of) -> float:
        counts = [x.outputs[0].spec_decode_metrics.lossy for x in answers(of, prompts, asking("lossless"))]
        return sum(x["accepted"] for x in counts) / sum(x["drafted"] for x in counts)

    # A draft whose scales were wrong would keep next to nothing.
    assert kept(rounded) == pytest.approx(kept(engine), abs=0.05)
