"""Drafts found in the text, which have no distribution."""

from __future__ import annotations

import pytest
from vllm.exceptions import VLLMValidationError

from hf_lossy_assist.integrations.vllm.inside import rules
from tests.vllm.asking import answers, asking, prompts_of, texts
from tests.vllm.conftest import GAMMA, start

LOOKUP = {"method": "ngram", "num_speculative_tokens": GAMMA, "prompt_lookup_max": 3, "prompt_lookup_min": 1}


def test_lossless_texts_are_the_engine_s_own_and_lossy_ones_are_not(pair, monkeypatch):
    engine, prompts = start({"lossy": {}}, speculative_config=LOOKUP), prompts_of(pair)
    assert texts(engine, prompts, asking("lossless")) == texts(engine, prompts, asking())
    seen = []
    decide = rules.decide_group
    monkeypatch.setattr(rules, "decide_group", lambda *args: seen.append(args[1]) or decide(*args))
    outputs = [x.outputs[0] for x in answers(engine, prompts, asking("topk", {"k": 8}))]
    assert sum(output.spec_decode_metrics.lossy["accepted_lossy"] for output in outputs) > 0
    assert all(step.draft_probs is None for step in seen)
    with pytest.raises(VLLMValidationError, match="draft_sample_method"):
        texts(engine, prompts, asking("fsd"))
