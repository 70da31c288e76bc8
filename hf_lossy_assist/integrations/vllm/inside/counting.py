"""Counts of what rules kept: schedulers add them to vLLM's statistics, and a logger shows them to Prometheus."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from prometheus_client import Counter
from vllm.config import VllmConfig
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.metrics.loggers import StatLoggerBase

_LABELS = ["model_name", "engine"]


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


@functools.cache
def _counters() -> dict[str, Counter]:
    return {
        "accepted_lossy": Counter(
            "vllm:lossy_accepted_tokens", "Drafted tokens kept that vLLM's own rule would have rejected.", _LABELS
        ),
        "accepted_by": Counter(
            "vllm:lossy_accepted_by_rule_tokens", "Drafted tokens kept, by rule.", [*_LABELS, "rule"]
        ),
    }


class LossyStatLogger(StatLoggerBase):
    """Adds every step's counts to Prometheus counters beside vLLM's own; an engine without lossy fields has none."""

    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:
        self.labels = (vllm_config.model_config.served_model_name, str(engine_index))

    def record(self, scheduler_stats: Any, iteration_stats: Any, *args: Any, **kwargs: Any) -> None:
        lossy = getattr(getattr(scheduler_stats, "spec_decoding_stats", None), "lossy", None)
        if lossy:
            _counters()["accepted_lossy"].labels(*self.labels).inc(lossy["accepted_lossy"])
            for rule, count in lossy["accepted_by"].items():
                _counters()["accepted_by"].labels(*self.labels, rule).inc(count)

    def log_engine_initialized(self) -> None:
        return
