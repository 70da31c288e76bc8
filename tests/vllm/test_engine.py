"""The engine's texts are those of ``generate()`` by the same rule, and its requests keep to themselves."""

from __future__ import annotations

import json
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import StructuredOutputsParams

from tests.acceptors.table import ROWS
from tests.vllm.asking import LENGTH, RULES, answers, asking, prompts_of, reference, texts

RANDOM = {"dropmatch"}
OWN_HEAD = {"judge", "sprinter"}
GREEDY = [(row.mode, row.config) for row in ROWS if row.mode not in RANDOM | OWN_HEAD] + RULES


@pytest.mark.parametrize(("mode", "config"), GREEDY, ids=str)
def test_greedy_texts_are_those_of_generate(engine, pair, mode: Any, config: dict[str, Any]):
    prompts = prompts_of(pair, 2)
    found = texts(engine, prompts, asking(mode, config))
    assert found == [reference(pair, prompt, mode, config) for prompt in prompts]


def test_a_budget_is_used_and_kept(engine, pair):
    prompts = prompts_of(pair)
    none, some, free = (
        texts(engine, prompts, asking("topk", {"k": 4} | x)) for x in ({"budget": 0.0}, {"budget": 0.05}, {})
    )
    assert none == texts(engine, prompts, asking("lossless"))
    assert some not in (none, free)


def test_a_scope_keeps_the_rule_out_of_the_text_outside(engine, pair):
    prompts = prompts_of(pair)
    never = {"k": 4, "scope": {"start": 790, "end": 791}}
    assert texts(engine, prompts, asking("topk", never)) == texts(engine, prompts, asking())
    begun = {"k": 4, "scope": {"start": prompts[0][-1], "end": 791}}
    assert texts(engine, prompts[:1], asking("topk", begun)) == texts(engine, prompts[:1], asking("topk", {"k": 4}))


def test_dropped_heads_read_the_target_s_states(engine, pair):
    """With next to no dropout all heads say what the target says."""
    prompts = prompts_of(pair)
    settings = {"criterion": "naive", "num_paths": 3}
    calm, wild = (asking("dropmatch", {**settings, "dropout": x, "seed": 3}) for x in (1e-7, 0.6))
    assert texts(engine, prompts, calm) == texts(engine, prompts, asking())
    lossy = texts(engine, prompts, wild)
    assert lossy != texts(engine, prompts, asking())
    assert texts(engine, prompts, wild) == lossy, "a seed repeats the masks"


def test_requests_of_different_rules_share_a_batch(engine, pair):
    prompt = prompts_of(pair)[0]
    asked = [asking(), *(asking(mode, config) for mode, config in RULES)]
    alone = [texts(engine, [prompt], each)[0] for each in asked]
    assert texts(engine, [prompt] * len(asked), *asked) == alone


@pytest.mark.parametrize(
    "more",
    [
        {"logprobs": 3},
        {"repetition_penalty": 1.3},
        {"frequency_penalty": 0.7, "presence_penalty": 0.3},
        {"stop": ["="]},
        {"min_tokens": 30},
        {"bad_words": ["1"]},
        {"structured_outputs": StructuredOutputsParams(regex="[0-9 +=]{12}")},
    ],
    ids=lambda x: "-".join(x),
)
def test_lossless_keeps_the_engine_s_text_whatever_changes_p(engine, pair, more: dict[str, Any]):
    prompts = prompts_of(pair)
    rule, own = (answers(engine, prompts, asking(mode, **more)) for mode in ("lossless", None))
    for mine, theirs in zip(rule, own, strict=True):
        mine, theirs = mine.outputs[0], theirs.outputs[0]
        assert (mine.text, mine.stop_reason) == (theirs.text, theirs.stop_reason)
        if "logprobs" in more:
            assert [{token: round(x.logprob, 3) for token, x in step.items()} for step in mine.logprobs] == [
                {token: round(x.logprob, 3) for token, x in step.items()} for step in theirs.logprobs
            ]


def test_a_lossy_text_keeps_to_its_grammar(engine, pair):
    grammar = StructuredOutputsParams(regex="[0-9 +=]{12}")
    for answer in answers(engine, prompts_of(pair), asking("topk", {"k": 8}, structured_outputs=grammar)):
        assert len(answer.outputs[0].text) == 12
        assert set(answer.outputs[0].text) <= set("0123456789 +=")


def test_stop_strings_end_lossy_texts(engine, pair):
    for answer in answers(engine, prompts_of(pair), asking("topk", {"k": 4}, stop=["="])):
        output = answer.outputs[0]
        assert output.stop_reason == "="
        assert "=" not in output.text


def test_several_texts_of_one_request_differ_and_repeat(engine, pair):
    prompt = prompts_of(pair)[:1]
    asked = asking("typical", n=4, temperature=1.5, seed=1)
    first, again = (answers(engine, prompt, asked)[0].outputs for _ in range(2))
    assert [x.token_ids for x in first] == [x.token_ids for x in again]
    assert len({tuple(x.token_ids) for x in first}) > 1


def test_a_seed_repeats_a_text_whatever_else_is_in_the_batch(engine, pair):
    prompts = prompts_of(pair)
    drawn = [asking("typical", temperature=1.2, seed=i) for i in range(4)]
    alone = [texts(engine, [x], each)[0] for x, each in zip(prompts, drawn, strict=True)]
    assert texts(engine, prompts, *drawn) == alone


def test_a_text_may_fill_the_models_length(engine, pair):
    """Near its end vLLM proposes nothing, and fills drafts with zeros, which every token's rule would keep."""
    text = texts(engine, prompts_of(pair)[:1], asking("lossless", max_tokens=220, ignore_eos=True))[0]
    prompt = prompts_of(pair)[0] + text[: 244 - len(prompts_of(pair)[0])]
    everything = asking("topk", {"k": 796}, ignore_eos=True, max_tokens=None)
    found = texts(engine, [prompt], everything)[0]
    assert len(prompt) + len(found) == 256
    own = texts(engine, [prompt + found[:-5]], asking(ignore_eos=True, max_tokens=None))[0]
    assert found[-5:] == own


@pytest.mark.parametrize(
    ("extra", "name"),
    [
        ({"lossy_mode": "typcal"}, "lossy_mode"),
        ({"lossy_mode": "typical", "lossy_config": '{"require_lossless": true}'}, "require_lossless"),
    ],
    ids=str,
)
def test_bad_fields_are_refused_by_name(engine, pair, extra: dict[str, Any], name: str):
    """Those of the tests of settings; here one when read, and one when checked, reach vLLM's own error."""
    with pytest.raises(VLLMValidationError, match=name):
        answers(engine, prompts_of(pair)[:1], SamplingParams(temperature=0, extra_args=extra))
    assert len(texts(engine, prompts_of(pair)[:1], asking("typical"))[0]) == LENGTH, "the engine goes on"


def test_an_engine_without_lossy_fields_is_vllm_s_own(plain, pair):
    assert "lossy" not in json.dumps(plain.llm_engine.vllm_config.parallel_config.worker_cls)
    with pytest.raises(VLLMValidationError, match="lossy_mode"):
        answers(plain, prompts_of(pair)[:1], asking("typical"))
