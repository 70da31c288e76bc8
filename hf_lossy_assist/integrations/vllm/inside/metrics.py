"""Prometheus counters, beside vLLM's own, of the tokens that rules kept."""

from __future__ import annotations

import functools
from typing import Any

from prometheus_client import Counter
from vllm.config import VllmConfig
from vllm.v1.metrics.loggers import StatLoggerBase

_LABELS = ["model_name", "engine"]


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
    """Adds every step's counts; an engine without lossy fields has none."""

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
