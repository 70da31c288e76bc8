"""Totals over all requests to a server, as JSON and for Prometheus."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from ...core.statistics import LossyStats, joined

_FAMILIES = {
    "requests": ("Requests that were assisted.", None),
    "rounds": ("Draft-and-verify rounds.", None),
    "drafted_tokens": ("Drafted tokens.", None),
    "tokens": ("Output tokens, by their status.", "fate"),
    "accepted_tokens": ("Kept drafted tokens, by the rule that kept them.", "rule"),
    "forward_passes": ("Forward passes, by model.", "of"),
    "seconds": ("Seconds of generation, by stage.", "stage"),
}


class Totals(Collector):
    """Sums of statistics over requests, by the name of the model; any thread may add to them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._total: dict[str, LossyStats] = {}
        self._last: dict[str, LossyStats] = {}

    def add(self, model: str, stats: LossyStats) -> None:
        with self._lock:
            self._requests[model] += 1
            self._last[model] = stats
            total = joined([self._total.get(model, LossyStats()), stats])
            self._total[model] = replace(total, trace=(), records=(), rows=())  # these grow with every token

    def to_dict(self) -> dict[str, Any]:
        """Return the number of requests, the totals and the last request of every model, as plain values."""
        with self._lock:
            return {
                model: {"requests": count, "total": self._total[model].to_dict(), "last": self._last[model].to_dict()}
                for model, count in self._requests.items()
            }

    def collect(self) -> Iterator[CounterMetricFamily]:
        with self._lock:
            totals = {model: self._values(model) for model in self._requests}
        for name, (about, label) in _FAMILIES.items():
            labels = ["model"] if label is None else ["model", label]
            family = CounterMetricFamily(f"lossy_assist_{name}", about, labels=labels)
            for model, values in totals.items():
                for value, amount in values[name].items():
                    family.add_metric([model, value][: len(labels)], amount)
            yield family

    def _values(self, model: str) -> dict[str, dict[str, float]]:
        """Return the values of every family, by its second label."""
        total = self._total[model]
        stages = {stage: seconds for stage, seconds in total.seconds.items() if stage != "total"}
        rest = total.seconds.get("total", 0.0) - sum(stages.values())
        return {
            "requests": {"": self._requests[model]},
            "rounds": {"": total.rounds},
            "drafted_tokens": {"": total.drafted},
            "tokens": {
                "accepted": total.accepted - total.accepted_lossy,
                "accepted_lossy": total.accepted_lossy,
                "corrected": total.corrected,
                "bonus": total.bonus,
            },
            "accepted_tokens": dict(total.accepted_by),
            "forward_passes": {"target": total.target_calls, "draft": total.draft_calls},
            "seconds": stages | {"other": max(0.0, rest)},
        }
