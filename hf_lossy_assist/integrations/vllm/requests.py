"""The requests of a batch, sorted by rule; they are sorted again only when a request joins or leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...call.config import RunConfig
from .randomness import seed_of
from .rounds import Group, Tables
from .settings import EngineSettings


class RunningRequests:
    """Sorts requests into groups of one rule, and gives each a slot in the tables.

    ``to_device`` copies a list of numbers to the device without waiting.
    """

    def __init__(
        self, settings: EngineSettings, tables: Tables, tokenizer: Any, seed: int, to_device: Callable[[list], Any]
    ) -> None:
        self.settings = settings
        self.tables = tables
        self.tokenizer = tokenizer
        self.seed = seed
        self._to_device = to_device
        self._slots: dict[str, int] = {}
        self._ids: list[str] = []
        self._without: frozenset[int] = frozenset()
        self._groups: list[Group] = []
        self._others: list[int] = []

    def groups(
        self, ids: Sequence[str], states: Mapping[str, Any], without: frozenset[int] = frozenset()
    ) -> tuple[list[Group], list[int]]:
        """Return the groups of a batch, and the rows that have no rule.

        ``states`` has vLLM's state of each request; the rows of ``without`` are given no rule this time.
        """
        if (ids, without) != (self._ids, self._without):
            self._ids, self._without = list(ids), without
            self._sort(states)
        return self._groups, self._others

    def _sort(self, states: Mapping[str, Any]) -> None:
        for request in [request for request in self._slots if request not in states]:
            del self._slots[request]
        grouped: dict[tuple[int, bool], tuple[RunConfig, list[int]]] = {}
        self._others = []
        for row, request in enumerate(self._ids):
            params = states[request].sampling_params
            config = self.settings.of_request(params.extra_args)
            if config is None or row in self._without:
                self._others.append(row)
                continue
            if request not in self._slots:
                taken = set(self._slots.values())
                self._slots[request] = next(i for i in range(self.tables.size) if i not in taken)
                self.tables.clear(self._slots[request])
            grouped.setdefault((id(config), params.temperature > 0), (config, []))[1].append(row)
        self._groups = [self._group(config, drawn, rows, states) for (_, drawn), (config, rows) in grouped.items()]

    def _group(self, config: RunConfig, do_sample: bool, rows: list[int], states: Mapping[str, Any]) -> Group:
        requests = [self._ids[row] for row in rows]
        return Group(
            config,
            do_sample,
            config.limits.bind(self.tokenizer),
            rows,
            index=None if len(rows) == len(self._ids) else self._to_device(rows),
            seeds=self._to_device([self._seed(request, states[request], config) for request in requests]),
            prompts=self._to_device([states[request].num_prompt_tokens for request in requests]),
            slots=self._to_device([self._slots[request] for request in requests]),
        )

    def _seed(self, request: str, state: Any, config: RunConfig) -> int:
        own = state.sampling_params.seed
        own = config.seed if own is None else own
        return seed_of(request, self.seed) if own is None else own
