"""Requests of engines, and what `generate()` answers to them."""

from __future__ import annotations

import json
from typing import Any

import torch
from vllm import SamplingParams, TokensPrompt

from tests.vllm.conftest import GAMMA

LENGTH = 40
RULES: list[tuple[Any, dict[str, Any]]] = [
    ("topk", {"k": 2}),
    ("judge", {"threshold": 0.3}),
    (["typical", "judge"], {}),
    ({"all_of": ["typical", "topk"]}, {}),
    ("topk", {"k": 3, "strict_first_n": 8}),
    ("ensemble", {"weight": 0.6}),
]


def prompts_of(pair, n: int = 4) -> list[list[int]]:
    return [pair.task.encode(example, pair.tokenizer) for example in pair.task.examples("test", n)]


def asking(mode: Any = None, config: dict[str, Any] | None = None, **more: Any) -> SamplingParams:
    extra = {} if mode is None else {"lossy_mode": mode, "lossy_config": json.dumps(config or {})}
    return SamplingParams(**{"temperature": 0, "max_tokens": LENGTH, "extra_args": extra or None, **more})


def answers(engine, prompts: list[list[int]], *params: SamplingParams) -> list[Any]:
    params = params * len(prompts) if len(params) == 1 else params
    return engine.generate([TokensPrompt(prompt_token_ids=x) for x in prompts], list(params), use_tqdm=False)


def texts(engine, prompts: list[list[int]], *params: SamplingParams) -> list[list[int]]:
    return [list(answer.outputs[0].token_ids) for answer in answers(engine, prompts, *params)]


def reference(pair, prompt: list[int], mode: Any, config: dict[str, Any]) -> list[int]:
    """vLLM's first token is the target's own, so rounds begin after it; its last round may look beyond the text."""
    first = pair.target.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=1)
    names = [mode] if isinstance(mode, str) else list(mode)
    if "strict_first_n" in config:
        config = {**config, "strict_first_n": config["strict_first_n"] - 1}
    out = pair.target.generate(
        first,
        assistant_model=pair.draft,
        lossy_mode=mode,
        lossy_config=config,
        do_sample=False,
        max_new_tokens=LENGTH + GAMMA,
        num_assistant_tokens=GAMMA,
        num_assistant_tokens_schedule="constant",
        assistant_confidence_threshold=0,
        **({"lossy_head": {"judge": pair.heads["judge"]}} if "judge" in names else {}),
    )
    return out[0, len(prompt) : len(prompt) + LENGTH].tolist()
