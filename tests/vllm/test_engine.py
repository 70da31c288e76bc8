"""The engine's texts are those of ``generate()`` by the same rule, and its requests keep to themselves."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from vllm import SamplingParams, TokensPrompt

from hf_lossy_assist import LossyError
from tests.vllm.conftest import GAMMA

LENGTH = 40
RULES: list[tuple[Any, dict[str, Any]]] = [
    ("lossless", {}),
    ("typical", {}),
    ("topk", {"k": 2}),
    ("fly", {"window": 2}),
    ("judge", {"threshold": 0.3}),
    (["typical", "judge"], {}),
    ({"all_of": ["typical", "topk"]}, {}),
    ("topk", {"k": 3, "budget": 0.2}),
    ("topk", {"k": 3, "strict_first_n": 8}),
]


def prompts_of(pair) -> list[list[int]]:
    return [pair.task.encode(example, pair.tokenizer) for example in pair.task.examples("test", 4)]


def answers(engine, prompts: list[list[int]], *params: SamplingParams) -> list[Any]:
    params = params * len(prompts) if len(params) == 1 else params
    return engine.generate([TokensPrompt(prompt_token_ids=x) for x in prompts], list(params), use_tqdm=False)


def asking(mode: Any = None, config: dict[str, Any] | None = None, **more: Any) -> SamplingParams:
    extra = {} if mode is None else {"lossy_mode": mode, "lossy_config": json.dumps(config or {})}
    return SamplingParams(**{"temperature": 0, "max_tokens": LENGTH, "extra_args": extra or None, **more})


def reference(pair, prompt: list[int], mode: Any, config: dict[str, Any]) -> list[int]:
    """vLLM's first token is the target's own, so rounds begin after it."""
    plain = pair.target.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=1)
    text = plain[0].tolist()
    names = [mode] if isinstance(mode, str) else list(mode)
    if "strict_first_n" in config:
        config = {**config, "strict_first_n": config["strict_first_n"] - 1}
    out = pair.target.generate(
        plain,
        assistant_model=pair.draft,
        lossy_mode=mode,
        lossy_config=config,
        do_sample=False,
        max_new_tokens=LENGTH - 1,
        num_assistant_tokens=GAMMA,
        num_assistant_tokens_schedule="constant",
        assistant_confidence_threshold=0,
        **({"lossy_head": {"judge": pair.heads["judge"]}} if "judge" in names else {}),
    )
    return out[0, len(text) - 1 :].tolist()


@pytest.mark.parametrize(("mode", "config"), RULES, ids=lambda x: str(x))
def test_greedy_texts_are_those_of_generate(engine, pair, mode: Any, config: dict[str, Any]):
    prompts = prompts_of(pair)
    outputs = [x.outputs[0] for x in answers(engine, prompts, asking(mode, config))]
    found = [list(output.token_ids) for output in outputs]
    if "budget" in config:  # `generate()` would not count the first token here
        for output in outputs:
            assert output.spec_decode_metrics.lossy["accepted_lossy"] <= config["budget"] * len(output.token_ids)
        return
    assert found == [reference(pair, prompt, mode, config) for prompt in prompts]


def test_requests_of_different_rules_share_a_batch(engine, pair):
    prompt = prompts_of(pair)[0]
    asked = [asking(), *(asking(mode, config) for mode, config in RULES)]
    alone = [answers(engine, [prompt], each)[0].outputs[0].token_ids for each in asked]
    together = [x.outputs[0].token_ids for x in answers(engine, [prompt] * len(asked), *asked)]
    assert together == alone


def test_statistics_are_those_of_the_text(engine, pair):
    for answer in answers(engine, prompts_of(pair), asking("topk", {"k": 4})):
        output = answer.outputs[0]
        counts = output.spec_decode_metrics.lossy
        assert counts["accepted"] == sum(counts["accepted_by"].values()) <= counts["drafted"]
        assert counts["accepted_lossy"] <= counts["accepted"] < len(output.token_ids)
        assert output.spec_decode_metrics.to_dict()["lossy"] == counts


@pytest.mark.parametrize(
    "more",
    [
        {"logprobs": 3},
        {"repetition_penalty": 1.3},
        {"stop": ["="]},
        {"n": 2, "temperature": 1.0, "seed": 1},
        {"temperature": 0.8, "top_k": 5, "top_p": 0.9, "seed": 2},
        {"min_tokens": 5},
    ],
    ids=lambda x: "-".join(x),
)
def test_sampling_parameters_work_and_lossless_keeps_the_engine_s_greedy_text(engine, pair, more: dict[str, Any]):
    prompts = prompts_of(pair)
    rule = answers(engine, prompts, asking("lossless", **more))
    again = answers(engine, prompts, asking("lossless", **more))
    own = answers(engine, prompts, asking(**more))
    if "temperature" not in more:
        assert [x.outputs[0].token_ids for x in rule] == [x.outputs[0].token_ids for x in own]
    assert len(rule[0].outputs) == more.get("n", 1)
    assert again is not rule


def test_a_seed_repeats_a_draw_whatever_else_is_in_the_batch(engine, pair):
    prompts = prompts_of(pair)
    drawn = [asking("typical", temperature=0.9, seed=i, max_tokens=1 + i) for i in range(4)]
    alone = [answers(engine, [x], each)[0].outputs[0].token_ids[0] for x, each in zip(prompts, drawn, strict=True)]
    together = [x.outputs[0].token_ids[0] for x in answers(engine, prompts, *drawn)]
    assert alone == together


@pytest.mark.parametrize(
    ("extra", "name"),
    [
        ({"lossy_mode": "typcal"}, "lossy_mode"),
        ({"lossy_mode": "typical", "lossy_config": '{"epsilon": 3}'}, "epsilon"),
        ({"lossy_mode": "typical", "lossy_config": '{"tree": {"depth": 2}}'}, "tree"),
        ({"lossy_mode": "typical", "lossy_config": '{"require_lossless": true}'}, "require_lossless"),
        ({"lossy_config": '{"epsilon": 0.1}'}, "lossy_mode"),
        ({"lossy_mod": "typical"}, "lossy_mod"),
        ({"lossy_mode": "sprinter"}, "sprinter"),
        ({"lossy_mode": "dropmatch"}, "dropout"),
        ({"lossy_mode": "judge", "lossy_head": "org/other"}, "lossy_head"),
    ],
    ids=str,
)
def test_bad_fields_are_refused_by_name(engine, pair, extra: dict[str, Any], name: str):
    with pytest.raises((LossyError, ValueError), match=name):
        answers(engine, prompts_of(pair)[:1], SamplingParams(temperature=0, extra_args=extra))
