"""Random settings, fields and arguments of ``generate()`` from one generator, and what comes of a call with them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from transformers import PreTrainedModel

from hf_lossy_assist.acceptors import REGISTRY, Acceptor, Setting, settings_of
from tests.acceptors.fixtures import HEADS
from tests.tiny_models import VOCAB

MOST = 70
"""How far above its lower bound an integer goes: enough here, and few enough to compute."""

JUNK = (
    -1, 0, 3, 2**63, 10**400, 10**5000, -1e300, 0.5, float("nan"), float("inf"), True, "", "x", b"topk", "js", None, (),
    [], [None], [[]], "\ud800", "A" * 100_000, {}, {"a": 1}, {"start": []}, {1, 2}, object(), torch.tensor([1, 2]),
    torch.nan, int, 1j,
)  # fmt: skip
"""Values of every kind: wrong types, out of range, empty, unhashable, with comparisons of their own."""

RUN_SETTINGS: Mapping[str, Callable[[Random], Any]] = {
    "seed": lambda r: r.choice([None, 0, r.randrange(2**63)]),
    "strict_first_n": lambda r: r.choice([None, 5, r.randint(0, 40)]),
    "budget": lambda r: r.choice([None, 0, 0.3, 1, r.random()]),
    "scope": lambda r: r.choice(
        [None, {"start": [9], "end": [5, 6]}, {"start": r.randrange(64), "end": [5]}, {"except": [[9, 5], [7, 7]]}]
    ),
    "strict_on_quotes": lambda r: r.choice([None, 1, r.randint(1, 40)]),
    "require_lossless": lambda r: r.choice([None, False]),
}
"""Settings of a run that work with every rule."""

GENERATION: Mapping[str, Callable[[Random], Any]] = {
    "repetition_penalty": lambda r: r.choice([0.8, 1.3, r.uniform(0.5, 3)]),
    "no_repeat_ngram_size": lambda r: r.randint(0, 3),
    "min_new_tokens": lambda r: r.randint(0, 20),
    "bad_words_ids": lambda r: [[r.randrange(VOCAB)], [r.randrange(VOCAB), r.randrange(VOCAB)]],
    "suppress_tokens": lambda r: r.sample(range(VOCAB), r.randint(1, 50)),
    "begin_suppress_tokens": lambda r: r.sample(range(VOCAB), 20),
    "forced_bos_token_id": lambda r: r.randrange(VOCAB),
    "forced_eos_token_id": lambda r: r.randrange(VOCAB),
    "exponential_decay_length_penalty": lambda r: (r.randint(0, 5), r.uniform(1.01, 2)),
    "sequence_bias": lambda r: [[[r.randrange(VOCAB)], 4.0], [[5, 6], r.uniform(-5, 5)]],
    "prefix_allowed_tokens_fn": lambda r: lambda row, ids: [*range(3 + len(ids) % 5, 60)],
    "renormalize_logits": lambda r: r.random() < 0.5,
    "remove_invalid_values": lambda r: r.random() < 0.5,
    "temperature": lambda r: r.choice([0.3, 0.9, r.uniform(0.1, 5)]),
    "top_k": lambda r: r.randint(0, 99),
    "top_p": lambda r: r.uniform(0.05, 1),
    "min_p": lambda r: r.random(),
    "typical_p": lambda r: r.uniform(0.05, 0.95),
    "epsilon_cutoff": lambda r: r.uniform(0, 0.5),
    "assistant_confidence_threshold": lambda r: r.random(),
    "num_assistant_tokens_schedule": lambda r: r.choice(["constant", "heuristic", "heuristic_transient"]),
}
"""Settings of transformers that work with every rule."""


def some(r: Random, values: Mapping[str, Callable[[Random], Any]], most: int) -> dict[str, Any]:
    """Draw a few of the names, and a value for each."""
    return {name: values[name](r) for name in r.sample(sorted(values), r.randint(0, most))}


def settings_for(r: Random, rule: type[Acceptor]) -> dict[str, Any]:
    """Draw some of a rule's settings that can work together, by what its class declares."""
    chosen = {each.name: _value(r, each) for each in settings_of(rule) if r.random() < 0.5}
    for each in settings_of(rule):
        if chosen.get(each.instead_of) is not None:
            chosen.pop(each.name, None)
    return chosen


def _value(r: Random, setting: Setting) -> Any:
    low, high = setting.low, setting.high
    if setting.choices:
        own = r.choice(setting.choices)
    elif setting.switch:
        own = r.random() < 0.5
    elif low is None:
        own = setting.default
    elif setting.integer:
        own = r.randint(int(low), int(min(high, low + MOST)))
    elif math.isinf(high):
        own = r.choice([low, low + 1, r.uniform(low, 1e9), high])
    else:
        own = r.choice([low, high, r.uniform(low, high), r.uniform(low, high)])
    more = [setting.word] * (setting.word is not None) + [None] * (setting.default is None)
    return r.choice(more) if more and r.random() < 0.3 else own


def fields_of(mode: Any, config: Mapping[str, Any], target: PreTrainedModel, draft: PreTrainedModel) -> dict[str, Any]:
    """Return the lossy fields of a mode, with a head for each rule that needs one."""
    names = [mode] if isinstance(mode, str) else mode["all_of"] if isinstance(mode, dict) else mode
    heads = {name: HEADS[name](target, draft) for name in names if name in HEADS}
    return {"lossy_mode": mode, "lossy_config": dict(config)} | ({"lossy_head": heads} if heads else {})


def random_rules(r: Random) -> tuple[Any, dict[str, Any]]:
    """Draw a mode that can work, of one rule or several, and its settings."""
    names = r.sample(sorted(REGISTRY), r.randint(1, 3))
    kind = r.choice(["one", "any", "all"])
    if "sprinter" in names:  # it commits tokens before any other rule is asked
        names, kind = ["sprinter", *(name for name in names if name != "sprinter")], kind.replace("all", "any")
    if kind == "one":
        return names[0], settings_for(r, REGISTRY[names[0]])
    own = {name: settings_for(r, REGISTRY[name]) for name in names}
    return (names if kind == "any" else {"all_of": names}), own


@dataclass(frozen=True)
class Attempt:
    """What a call returned or raised, and how many forwards it took."""

    value: Any
    error: Exception | None
    forwards: int


def attempt(call: Callable[[], Any], *models: PreTrainedModel) -> Attempt:
    """Call from the same seed, without warnings, and catch whatever is an ``Exception``."""
    torch.manual_seed(0)
    with counted(*models) as forwards, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return Attempt(call(), None, len(forwards))
        except Exception as error:
            return Attempt(None, error, len(forwards))


@contextmanager
def counted(*models: PreTrainedModel) -> Iterator[list[int]]:
    """Count the models' forwards inside the block."""
    forwards: list[int] = []
    handles = [model.register_forward_pre_hook(lambda *_: forwards.append(1)) for model in models]
    try:
        yield forwards
    finally:
        for handle in handles:
            handle.remove()
