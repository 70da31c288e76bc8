"""Answers requests with one engine of vLLM, a JSON line for each.

``python -m hf_lossy_assist.integrations.vllm.answering`` reads its standard input. The first line has the arguments of
``vllm.LLM``. Each further line is a request, whose answer has each prompt's new tokens and work, and the seconds of
all.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def work(output: Any) -> tuple[int, int, int]:
    """Return a text's rounds, its tokens that were drafted, and all drafted ones.

    The first round reads the prompt, without a draft. Drafted tokens beyond a text's end are not the text's.
    """
    count, metrics = len(output.token_ids), getattr(output, "spec_decode_metrics", None)
    if metrics is None:
        return count, 0, 0
    rounds = 1 + sum(metrics.histogram)
    accepted = sum(kept * times for kept, times in enumerate(metrics.histogram))
    # The last round may end in a drafted token; the others each have one of the target's own.
    accepted = min(accepted, count - rounds + 1)
    return rounds, accepted, metrics.num_draft_tokens


def answer(engine: Any, parameters: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Answer the prompts of a request together."""
    prompts = [{"prompt_token_ids": ids} for ids in request["prompts"]]
    started = time.perf_counter()
    outputs = engine.generate(prompts, parameters(**request["parameters"]), use_tqdm=False)
    seconds = time.perf_counter() - started
    texts = [output.outputs[0] for output in outputs]
    tokens = [list(text.token_ids) for text in texts]
    return {"tokens": tokens, "work": [*map(work, texts)], "seconds": seconds}


def main() -> None:
    """Serve the process's standard input until it ends."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # vLLM's own lines don't belong between the answers
    settings = json.loads(sys.stdin.readline())
    from vllm import LLM, SamplingParams

    engine = LLM(**settings, disable_log_stats=False)
    out.write("{}\n")  # it has started
    for line in sys.stdin:
        try:
            reply = answer(engine, SamplingParams, json.loads(line))
        except ValueError as error:  # what the engine refuses
            reply = {"error": str(error)}
        out.write(json.dumps(reply) + "\n")


if __name__ == "__main__":
    main()
