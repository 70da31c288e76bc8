"""Schedulers that add what rules kept to vLLM's statistics of each request and of each step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler


class LossyCounting:
    """Counts the tokens that reach the output: a stop may cut a round short."""

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> dict[int, Any]:
        rounds: dict[str, Any] = {}
        for counts in getattr(model_runner_output, "lossy", ()):
            rounds |= counts.by_request()
        for id, n in (scheduler_output.num_invalid_spec_tokens or {}).items():  # forbidden by a grammar
            if id in rounds:
                rounds[id] = replace(rounds[id], drafted=rounds[id].drafted - n)
        metrics = {id: self.requests[id].spec_decode_metrics for id in rounds if id in self.requests}
        results = super().update_from_output(scheduler_output, model_runner_output)
        total: dict[str, Any] = {}
        for result in results.values():
            for output in result.outputs:
                own = metrics.get(output.request_id)
                if own is not None:
                    done = rounds[output.request_id]
                    for counts in (own.lossy, total):
                        done.add_to(counts, len(output.new_token_ids))
                    # The front end itself ends a text at a stop string, so any output may be the last.
                    output.spec_decode_metrics = own
        for result in results.values():
            if total and result.scheduler_stats is not None and result.scheduler_stats.spec_decoding_stats is not None:
                result.scheduler_stats.spec_decoding_stats.lossy = total
        return results


class LossyScheduler(LossyCounting, Scheduler):
    """vLLM's scheduler."""


class LossyAsyncScheduler(LossyCounting, AsyncScheduler):
    """vLLM's scheduler of steps ahead."""
