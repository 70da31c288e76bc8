"""Calls in double precision beside plain ``generate()``: the same text, or a refusal before any forward."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any

from transformers import PreTrainedModel

from hf_lossy_assist import LossyError
from hf_lossy_assist.compat.probe import obstacle_to_rollback
from tests.architectures import made
from tests.parity import assert_same_rows
from tests.tiny_models import noisy_copy
from tests.trial.drawing import attempt

# Rows end at different times, and the padding token, by which some models count positions, is no part of a text.
GREEDY = {"do_sample": False, "max_new_tokens": 14, "eos_token_id": [5, 9, 20, 30], "pad_token_id": 0,
          "suppress_tokens": [0]}  # fmt: skip
TIE = 1e-6
TREE = {"tree": {"depth": 3, "top_k": 2, "nodes": 6}}
Drafting = Callable[[PreTrainedModel], dict[str, Any]]
CHAINS: Mapping[str, Drafting] = {
    "model": lambda draft: {"assistant_model": draft, "num_assistant_tokens": 4},
    "default length": lambda draft: {"assistant_model": draft},
    "look-up": lambda draft: {"prompt_lookup_num_tokens": 3},
}
DRAFTERS = CHAINS | {"tree": lambda draft: {"assistant_model": draft, "lossy_config": TREE}}


@functools.cache
def exact(name: str) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Return a family's pair in double precision."""
    target = made(name)
    return target, noisy_copy(target)


def generated(target: PreTrainedModel, inputs: Mapping[str, Any], **kwargs: Any) -> Any:
    return target.generate(**copy.deepcopy(dict(inputs)), **GREEDY | kwargs)


def assert_right(
    target: PreTrainedModel, inputs: Mapping[str, Any], drafting: Mapping[str, Any], **kwargs: Any
) -> None:
    if obstacle_to_rollback(target, several=True) is not None:  # in transformers 5.14
        assert_refused(target, inputs, drafting, "can read only one token")
        return
    plain = generated(target, inputs, output_logits=True, return_dict_in_generate=True, **kwargs)
    assert_same_rows(generated(target, inputs, **drafting, **kwargs, lossy_mode="lossless"), plain, TIE)


def assert_refused(target: PreTrainedModel, inputs: Mapping[str, Any], drafting: Mapping[str, Any], *said: str) -> None:
    for model in (target, drafting.get("assistant_model", target)):
        obstacle_to_rollback(model, several=True)  # which asks a model once, by forwards that are no call's
    ours = attempt(lambda: generated(target, inputs, **drafting, lossy_mode="lossless"), target)
    assert isinstance(ours.error, LossyError), ours.error
    assert all(word in str(ours.error) for word in said), ours.error
    assert not ours.forwards
