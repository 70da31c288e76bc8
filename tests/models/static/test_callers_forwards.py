"""Static caches where the caller has put something around a model's forward, or its weights elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from accelerate import cpu_offload
from accelerate.hooks import ModelHook, add_hook_to_module
from transformers import PreTrainedModel

from hf_lossy_assist import enabled
from tests.nightly import spread
from tests.parity import assert_same_rows
from tests.tiny_models import noisy_copy, padded, prompt, tiny

GREEDY = {"do_sample": False, "max_new_tokens": 16, "return_dict_in_generate": True, "cache_implementation": "static"}


def _wrapped(forward: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(forward)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    return wrapped


def _autocast(model: PreTrainedModel) -> None:
    model.forward = torch.autocast("cpu", enabled=False)(model.forward)


def _decorated(model: PreTrainedModel) -> None:
    model.forward = _wrapped(model.forward)


def _decorated_decoder(model: PreTrainedModel) -> None:
    model.model.forward = _wrapped(model.model.forward)


def _compiled(model: PreTrainedModel) -> None:
    model.forward = torch.compile(model.forward, backend="eager", dynamic=True)


CHANGES: dict[str, Callable[[PreTrainedModel], Any]] = {
    "functools.wraps": _decorated,
    "around the decoder": _decorated_decoder,
    "autocast": _autocast,
    "torch.compile": _compiled,
    "accelerate's hooks": lambda model: add_hook_to_module(model, ModelHook()),
    "accelerate's offloading": lambda model: cpu_offload(model, execution_device=torch.device("cpu")),
}


@pytest.mark.filterwarnings("ignore:a static cache has no effect here")
@spread(name=CHANGES, whose=["draft", "target"])
def test_texts_are_plain(name: str, whose: str):
    """Of a batch, rows end apart."""
    inputs = {"input_ids": prompt()} if whose == "target" else padded()
    models = {"target": tiny(), "draft": noisy_copy(tiny(), 0.05)}
    settings = GREEDY | inputs | {"eos_token_id": list(range(3, 13))}
    plain = models["target"].generate(**settings, output_logits=True)
    CHANGES[name](models[whose])
    with enabled():
        ours = models["target"].generate(**settings, assistant_model=models["draft"], lossy_mode="lossless")
    assert_same_rows(ours.sequences, plain)
    assert ours.lossy_stats.accepted > 0
