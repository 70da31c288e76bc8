"""Recorded graphs, and compiled ones, without a GPU."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import pytest
import torch

from hf_lossy_assist import last_stats
from hf_lossy_assist.generation.runner_choice import LEAST_TOKENS
from hf_lossy_assist.models.static import cache_slot
from hf_lossy_assist.models.static.graphs import RECORDERS
from tests.tiny_models import noisy_copy, prompt, tiny

NEW = LEAST_TOKENS  # fewer are not recorded
EAGER = {"compile": False}
# Target's forwards and draft's graphs: a whole draft is one, or one of three lengths where it may end early.
RECORDINGS = {"no drafts": 1, "no drafts, drawn": 1, "greedy": 2, "drawn": 2, "drawn, processed": 2}
RECORDINGS |= {"ensemble, drawn": 4, "greedy, default length": 4, "drawn, default length": 4}
RECORDINGS |= {"a threshold": 4, "drawn, a threshold": 4}
CASES = {
    "greedy": {"num_assistant_tokens": 5},
    "greedy, default length": {},
    "drawn, default length": {"do_sample": True},
    "a threshold": {"num_assistant_tokens": 20, "assistant_confidence_threshold": 0.1},
    "drawn, a threshold": {"do_sample": True, "num_assistant_tokens": 20, "assistant_confidence_threshold": 0.02},
    "drawn": {"do_sample": True, "num_assistant_tokens": 4},
    "drawn, processed": {"do_sample": True, "num_assistant_tokens": 4, "temperature": 0.8, "top_k": 20, "top_p": 0.9},
    "dropmatch": {"lossy_mode": "dropmatch", "num_assistant_tokens": 4},
    "ensemble, drawn": {"lossy_mode": "ensemble", "do_sample": True},
    "a penalty": {"lossy_mode": "topk", "repetition_penalty": 1.3, "num_assistant_tokens": 3},
    "drafts of one token": {"num_assistant_tokens": 1},
    "no drafts": {"num_assistant_tokens": 0},
    "no drafts, drawn": {"num_assistant_tokens": 0, "do_sample": True, "top_k": 20},
    "a schedule": {"num_assistant_tokens": 3, "num_assistant_tokens_schedule": "heuristic"},
    "tree": {"config": {"tree": {"depth": 4, "top_k": 3, "nodes": 12}}},
    "tree, automatic": {"config": {"tree": {"depth": 3, "top_k": 4, "nodes": "auto"}}},
    "tree, typical": {"config": {"tree": {"depth": 4, "top_k": 3, "nodes": 12}}, "lossy_mode": "typical"},
}


class Recorder:
    """Records as CUDA graphs do: a replay reads where the first run read, and writes where it wrote.

    Replays run by ``replaying``. Models are told that a stream is captured, since their code then asks nothing of the
    device. A replay ruins the outputs of other graphs in its memory, as far as another's calculation may.
    """

    def __init__(self, replaying: Callable[[Callable[[], Any]], Any] = lambda body: body()) -> None:
        self.recordings = self.replays = 0
        self.replaying = replaying

    def __call__(self, body: Callable[[], Any], device: Any, memory: Any) -> tuple[Callable[[], None], Any]:
        self.recordings += 1
        output = _captured(body)
        memory.pool = memory.pool or []
        memory.pool.append(output)

        def replay() -> None:
            self.replays += 1
            for other in (x for outputs in memory.pool if outputs is not output for x in outputs):
                other.fill_(torch.nan if other.is_floating_point() else 0)
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


def llamas():
    target = tiny("llama")
    return target, noisy_copy(target)


def assert_same(recorder, target, draft, config=None, graphs=MappingProxyType({}), **kwargs):
    """Assert that texts and statistics are the eager loop's by graphs, which ``graphs`` configures; return outputs."""
    kwargs = {"input_ids": prompt(), "do_sample": False, "eos_token_id": None, "max_new_tokens": NEW} | kwargs
    outputs, counts = [], []
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*no effect")
        for more in (EAGER, graphs):
            assert not recorder.replays
            settings = {"seed": 3} | (config or {}) | more
            outputs.append(
                target.generate(assistant_model=draft, lossy_config=settings, **{"lossy_mode": "lossless"} | kwargs)
            )
            stats = last_stats(target)
            counts.append([stats.trace, stats.drafted, stats.accepted_histogram, stats.target_calls])
            if [name for name in kwargs if "assistant" in name] == ["num_assistant_tokens"]:  # no draft ends early
                counts[-1] += [stats.draft_calls, stats.draft_tokens]
    assert recorder.replays
    assert torch.equal(*(getattr(output, "sequences", output) for output in outputs))
    assert counts[0] == counts[1] or "auto" in str(config)  # a tree whose size is chosen is as wide as graphs are
    return outputs


def generated(target, draft, **kwargs):
    settings = {"assistant_model": draft, "lossy_mode": "lossless", "num_assistant_tokens": 5, "max_new_tokens": NEW}
    return target.generate(prompt(), do_sample=False, eos_token_id=None, **settings | kwargs)
