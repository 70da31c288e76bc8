"""A streamer that wants to know learns what became of every token, as the statistics have it."""

from __future__ import annotations

from typing import Any

import pytest

from hf_lossy_assist import last_stats
from hf_lossy_assist.decoding.progress import TokenStatusStreamer
from tests.tiny_models import noisy_copy, prompt, tiny


class Recorder(TokenStatusStreamer):
    """Has a line for every call."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.fates: list[str] = []
        self.ended = 0

    def put(self, value: Any) -> None:
        assert len(self.fates) <= len(self.tokens)
        assert not self.ended
        self.tokens += value.flatten().tolist()

    def put_statuses(self, fates: Any) -> None:
        self.fates += fates

    def end(self) -> None:
        self.ended += 1


@pytest.mark.parametrize(
    "fields",
    [
        {"lossy_mode": "topk", "lossy_config": {"k": 3}},
        {"lossy_mode": "topk", "lossy_config": {"k": 3, "tree": {"depth": 3, "top_k": 2}}},
        {"lossy_mode": "lossless"},
    ],
    ids=["chain", "tree", "lossless"],
)
def test_fates_are_the_trace(fields: dict):
    target, recorder, ids = tiny(), Recorder(), prompt()
    out = target.generate(
        ids, assistant_model=noisy_copy(target), num_assistant_tokens=4, max_new_tokens=24, do_sample=False,
        streamer=recorder, **fields,
    )  # fmt: skip
    assert recorder.tokens == out[0].tolist()
    assert tuple(recorder.fates) == last_stats(target).trace
    assert len(recorder.fates) == out.shape[1] - ids.shape[1]
    assert recorder.ended == 1
