"""Drafts by other ways than a draft model: found in the text, or by a head on the target."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from vllm.exceptions import VLLMValidationError

from hf_lossy_assist import pairs
from hf_lossy_assist.integrations.vllm.inside import rules
from tests.vllm.asking import asking, prompts_of, texts
from tests.vllm.conftest import GAMMA, start

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
    assert texts(engine, prompts, asking("topk", {"k": 8})) != texts(engine, prompts, asking())
    assert all(step.draft_probs is None for step in seen)
    with pytest.raises(VLLMValidationError, match="draft_sample_method"):
        texts(engine, prompts, asking("fsd"))


@pytest.mark.parametrize("drafted", ["greedy", "probabilistic"])
def test_eagle3_drafts_are_decided_by_rules(drafted, pair):
    engine = start({"lossy": {}}, speculative_config=EAGLE3 | {"draft_sample_method": drafted})
    prompts = prompts_of(pair)
    assert texts(engine, prompts, asking("lossless")) == texts(engine, prompts, asking())
    assert texts(engine, prompts, asking("topk", {"k": 8})) != texts(engine, prompts, asking())
    if drafted == "probabilistic":
        assert texts(engine, prompts, asking("lenience", {"factor": 0.2})) != texts(engine, prompts, asking("lossless"))
