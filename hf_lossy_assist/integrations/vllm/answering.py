"""Answers requests with one engine of vLLM, a JSON line for each.

``python -m hf_lossy_assist.integrations.vllm.answering`` reads its standard input. The first line has the arguments of
``vllm.LLM``. Each further line is a request, whose answer has the new tokens of each prompt, the seconds that they
took, and how many tokens were drafted and accepted.
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


def answer(engine: Any, parameters: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Answer the prompts of a request together."""
    prompts = [{"prompt_token_ids": ids} for ids in request["prompts"]]
    before = counted(engine.get_metrics())
    started = time.perf_counter()
    outputs = engine.generate(prompts, parameters(**request["parameters"]), use_tqdm=False)
    seconds = time.perf_counter() - started
    after = counted(engine.get_metrics())
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    return {"tokens": tokens, "seconds": seconds, **{name: after[name] - before[name] for name in after}}


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
