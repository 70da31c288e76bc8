"""Recorded graphs, and compiled ones, without a GPU."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from hf_lossy_assist.models.static import cache_slot
from hf_lossy_assist.models.static.graphs import RECORDERS


class Recorder:
    """Records as CUDA graphs do: a replay reads where the first run read, and writes where it wrote.

    Replays run by ``replaying``. Models are told that a stream is captured, since their code then asks nothing of the
    device.
    """

    def __init__(self, replaying: Callable[[Callable[[], Any]], Any] = lambda body: body()) -> None:
        self.recordings = self.replays = 0
        self.replaying = replaying

    def __call__(self, body: Callable[[], Any], device: Any) -> tuple[Callable[[], None], Any]:
        self.recordings += 1
        output = _captured(body)

        def replay() -> None:
            self.replays += 1
            self.replaying(lambda: [own.copy_(new) for own, new in zip(output, _captured(body), strict=True)])

        return replay, output


def _captured(body: Callable[[], Any]) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        return body()


def record(patch: pytest.MonkeyPatch, recorder: Recorder, device: str = "cpu") -> Recorder:
    """Let graphs be recorded on a ``device``: calls then go as they go on CUDA by default."""
    patch.setattr(cache_slot, "_idle", weakref.WeakKeyDictionary())  # which other tests have recorded on
    patch.setitem(RECORDERS, device, recorder)
    return recorder


class Backend:
    """Runs graphs as they are, and counts them."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph, inputs, **options):
        self.graphs += 1
        return graph.forward

    def __deepcopy__(self, memo) -> Backend:
        return self
