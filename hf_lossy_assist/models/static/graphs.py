"""Records what a function launches, to launch all of it again as one CUDA graph."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from copy import copy
from functools import partial
from typing import Any

import torch
from accelerate.utils import recursively_apply
from torch import Tensor, nn
from transformers import CompileConfig

from ...compat.kernels import clean_up
from .cache_slot import GraphMemory, StaticCacheSlot
from .forwards import Make, compiling

Recorder = Callable[[Callable[[], Any], torch.device, GraphMemory], tuple[Callable[[], None], Any]]
"""Runs a function on a device, and returns what runs it again, and its output, which each run overwrites.

Runs of other functions in the same memory may overwrite it, too.
"""

_WARM_UPS = 2
_MOST_GRAPHS = 16  # on one cache
_WITHOUT_GRAPHS = {"reduce-overhead": "default", "max-autotune": "max-autotune-no-cudagraphs"}
"""Modes of ``torch.compile`` that record graphs of their own, and the same modes without."""


class Graph:
    """A function of tensors of fixed shapes, recorded in its first run.

    Later runs copy their tensors to where the recorded kernels read them, and launch these as one. What is not a tensor
    stays as it was. Each run overwrites the output of the one before, and may overwrite those of others in ``memory``.
    """

    def __init__(self, body: Callable[..., Any], recorder: Recorder, memory: GraphMemory) -> None:
        self.body = body
        self.recorder = recorder
        self.memory = memory
        self._own: dict[Any, Any] | None = None
        self._given: dict[Any, Any] = {}

    def __call__(self, *args: Any, **named: Any) -> Any:
        inputs = dict(enumerate(args)) | named
        if self._own is None:
            own = recursively_apply(Tensor.clone, inputs, memory_format=torch.contiguous_format)
            device = next(x.device for x in own.values() if isinstance(x, Tensor))
            first, others = [own[i] for i in range(len(args))], {name: own[name] for name in named}
            run = partial(self.body, *first, **others)
            self._replay, self._output = self.recorder(run, device, self.memory)
            self._own = own
        for name, given in inputs.items():
            if given is not self._given.get(name):
                _copy(self._own[name], given)
        self._given = {name: x for name, x in inputs.items() if name == "attention_mask"}  # the same for many runs
        self._replay()
        return self._output


def _copy(own: Any, given: Any) -> None:
    if isinstance(own, dict):
        for name, x in own.items():
            _copy(x, given[name])
    elif isinstance(own, Tensor):
        own.copy_(given)


class Recording:
    """Prepares functions by recording them as graphs, which belong to a cache."""

    records = decorated = True
    key = "graphs"
    title = "Recording graphs of {} for {} tokens"

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def prepared(self, slot: StaticCacheSlot, key: Hashable, make: Callable[[], Any]) -> Graph:
        """Return the graph of what ``make`` makes; ``key`` tells it from others of this cache."""
        key = self.key, key
        if key not in slot.graphs:
            if len(slot.graphs) >= _MOST_GRAPHS:
                slot.forget_forwards()
            slot.graphs[key] = Graph(slot.recorded(make()), self.recorder, slot.memory)
        return slot.graphs[key]

    def part(self, model: nn.Module, slot: StaticCacheSlot, key: Hashable, make: Make) -> Callable[..., Any]:
        """Return what ``make`` makes, a part of a graph."""
        return make(model)


class CompiledRecording(Recording):
    """Records what is compiled: compiled forwards launch fewer kernels, and a graph launches these as one."""

    decorated = False

    def __init__(self, recorder: Recorder, config: CompileConfig | None) -> None:
        super().__init__(recorder)
        config = CompileConfig() if config is None else copy(config)
        config.mode = _WITHOUT_GRAPHS.get(config.mode, config.mode)
        if config.options:
            config.options = {**config.options, "triton.cudagraphs": False}
        self.compiling = compiling(config)
        self.key, self.title, self.part = (self.key, self.compiling.key), self.compiling.title, self.compiling.part


def weights_of(model: nn.Module) -> Hashable:
    """Return what recorded kernels know of a model: where its weights are, its modules, and whether it trains."""
    tensors = (*model.parameters(), *model.buffers())
    return tuple(x.data_ptr() for x in tensors), tuple((id(module), module.training) for module in model.modules())


_recording = threading.Lock()  # torch has one capture at a time


def cuda_graph(body: Callable[[], Any], device: torch.device, memory: GraphMemory) -> tuple[Callable[[], None], Any]:
    # Each cache has memory of its own, so that threads may run their graphs at the same time.
    with _recording, torch.cuda.device(device):
        side, current = torch.cuda.Stream(), torch.cuda.current_stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):  # libraries and allocators set themselves up
                body()
        current.wait_stream(side)
        memory.pool = memory.pool or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        try:
            # The outer stream is set again in the end, since a capture that fails would leave its own in use.
            with torch.cuda.stream(current), torch.cuda.graph(graph, memory.pool, capture_error_mode="thread_local"):
                output = body()
        except BaseException:
            clean_up(torch.cuda.current_device(), memory.pool)
            raise
    return graph.replay, output


RECORDERS: dict[str, Recorder] = {"cuda": cuda_graph}
"""By type of device, what records graphs there."""
