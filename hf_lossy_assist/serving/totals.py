"""What a server has done for its requests, all together: as JSON, and for Prometheus."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from ..stats import LossyStats, joined

_FAMILIES = {
    "requests": ("Requests that were assisted.", None),
    "rounds": ("Draft-and-verify rounds.", None),
    "drafted_tokens": ("Tokens that were proposed.", None),
    "tokens": ("Output tokens, by how each came to be there.", "fate"),
    "accepted_tokens": ("Proposed tokens that were kept, by the rule that kept them.", "rule"),
    "forward_passes": ("Forward passes, by model.", "of"),
    "seconds": ("Seconds of generation, by stage.", "stage"),
}


class Totals(Collector):
    """The sums of statistics over requests, by the name of the model; any thread may add to them.

    Examples
    --------
    >>> totals = Totals()
    >>> totals.add("org/model", LossyStats(rounds=2, drafted=4, accepted=3, bonus=2))
    >>> totals.to_dict()["org/model"]["total"]["tokens_per_round"]
    2.5
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._total: dict[str, LossyStats] = {}
        self._last: dict[str, LossyStats] = {}

    def add(self, model: str, stats: LossyStats) -> None:
        """Add one request's statistics."""
        with self._lock:
            self._requests[model] += 1
            self._last[model] = stats
            # Without what grows with every token.
            self._total[model] = replace(
                joined([self._total.get(model, LossyStats()), stats]), trace=(), records=(), rows=()
            )

    def to_dict(self) -> dict[str, Any]:
        """Return every model's number of requests, total and last request, as plain values."""
        with self._lock:
            return {
                model: {"requests": count, "total": self._total[model].to_dict(), "last": self._last[model].to_dict()}
                for model, count in self._requests.items()
            }

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Return the totals as Prometheus counters."""
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
        """Return the values of every family by those of its second label."""
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
