"""Answers requests with one engine of vLLM, a JSON line for each.

``python -m hf_lossy_assist.integrations.vllm.answering`` reads its standard input. The first line has the arguments of
``vllm.LLM``. Each further line is a request. Its answer has each prompt's new tokens and how many of them were drafted,
and how many only a lossy rule kept; and of all prompts together the seconds, and the tokens drafted and accepted.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

COUNTERS = {"vllm:spec_decode_num_draft_tokens": "drafted", "vllm:spec_decode_num_accepted_tokens": "accepted"}


def counted(metrics: Any) -> dict[str, int]:
    """Return the drafted and the accepted tokens so far."""
    found = dict.fromkeys(COUNTERS.values(), 0)
    for metric in metrics:
        if metric.name in COUNTERS:
            found[COUNTERS[metric.name]] += metric.value
    return found


def kept(output: Any) -> tuple[int, int]:
    """Return how many of a text's tokens were drafted, and how many of these only a lossy rule kept."""
    metrics = getattr(output, "spec_decode_metrics", None)
    if metrics is None:
        return 0, 0
    accepted = sum(count * rounds for count, rounds in enumerate(metrics.histogram))
    # A stop may cut the last round short, which only the rule's own counts know.
    lossy = getattr(metrics, "lossy", {})
    return lossy.get("accepted", accepted), lossy.get("accepted_lossy", 0)


def answer(engine: Any, parameters: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Answer the prompts of a request together."""
    prompts = [{"prompt_token_ids": ids} for ids in request["prompts"]]
    before = counted(engine.get_metrics())
    started = time.perf_counter()
    outputs = engine.generate(prompts, parameters(**request["parameters"]), use_tqdm=False)
    seconds = time.perf_counter() - started
    after = counted(engine.get_metrics())
    texts = [output.outputs[0] for output in outputs]
    tokens = [list(text.token_ids) for text in texts]
    return {
        "tokens": tokens,
        "kept": [*map(kept, texts)],
        "seconds": seconds,
        **{name: after[name] - before[name] for name in after},
    }


def main() -> None:
    """Serve the process's standard input until it ends."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # vLLM's own lines don't belong between the answers
    settings = json.loads(sys.stdin.readline())
    from vllm import LLM, SamplingParams, __version__

    engine = LLM(**settings, disable_log_stats=False)
    out.write(json.dumps({"version": __version__}) + "\n")
    for line in sys.stdin:
        try:
            reply = answer(engine, SamplingParams, json.loads(line))
        except ValueError as error:  # what the engine refuses
            reply = {"error": str(error)}
        out.write(json.dumps(reply) + "\n")


if __name__ == "__main__":
    main()
