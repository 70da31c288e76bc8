"""The lossy fields of an engine and of its requests: parsed, checked, and merged as ``generate()`` does."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ...acceptors import REGISTRY, place_rule_head, settings_of
from ...acceptors.base import AUTO
from ...errors import LossyUnsupportedError, LossyValueError, brief, nearest
from ...generation.certificate import Certificate
from ...generation.checks import check_mode
from ...generation.config import FIELDS, LossyConfig, head_users
from ...generation.spelling import LONGEST, spelt
from ...values import check_keys, from_json

KEYS = (*(name.removeprefix("lossy_") for name in FIELDS), "certificate")
"""The keys of ``{"lossy": …}`` in ``--additional-config``, with the meaning of ``generate()``'s fields.

``certificate`` alone runs what it certifies."""

_ABSENT = {
    "tree": "vLLM verifies chains",
    "stop_drafting": "vLLM decides how many tokens are drafted (`num_speculative_tokens`)",
    "compile": "vLLM decides how forwards are compiled",
    "inspect": "vLLM returns `logprobs` instead",
}

_MOST = {"num_paths": 32, "window": 64, "start": 64, "end": 64, "except": 256, "strict_on_quotes": 64}
"""The most that a request may ask for of what costs time: numbers, and the lengths of a scope's markers."""

_INTEGERS = ("k", "mismatches", "top_n", "num_paths", "window")
"""The integer settings of rules that a request may set. Any may cost time, so a new one needs an entry."""

# Numbers and choices, which can't name a folder or a repository.
_INSIDE: Mapping[str, Collection[str]] = {"scope": ("start", "end", "except")} | {
    name: [
        x.name
        for x in settings_of(rule)
        if x.name in _INTEGERS or x.choices or x.switch or (x.low is not None and not x.integer)
    ]
    for name, rule in REGISTRY.items()
}
_LIMITS = ("strict_first_n", "strict_on_quotes", "budget")
_ASKED = {"seed", "require_lossless", *_LIMITS, *_ABSENT, *_INSIDE}.union(*_INSIDE.values())
"""The keys of a request's ``lossy_config``; those of :data:`_ABSENT` may only be off."""


@dataclass(frozen=True)
class Drafting:
    """How an engine drafts, as far as a rule cares."""

    method: str  # vLLM's name
    tokens: int  # the most drafted tokens
    keeps_probs: bool  # whether the draft's probabilities reach the rule
    rounds_head: bool = False  # whether the drafter rounds its copy of the target's LM head
    texts_on_host: bool = True  # whether the host knows the texts when a step is decided: not if scheduled ahead


@dataclass(frozen=True, eq=False)
class EngineSettings:
    """The lossy fields that an engine was started with, and how it drafts.

    Examples
    --------
    >>> settings = EngineSettings.read({"mode": "typical"}, Drafting("draft_model", 4, keeps_probs=False))
    >>> settings.of_request({"lossy_mode": "topk", "lossy_config": '{"k": 3}'}).rule
    TopK(k=3)
    """

    mode: Any
    config: Mapping[str, Any] | None
    head: Any
    drafting: Drafting
    device: torch.device | str = "cpu"
    _heads: dict[str, Any] = field(default_factory=dict)
    _parsed: dict[str, LossyConfig | None] = field(default_factory=dict)

    @classmethod
    def read(cls, given: Any, drafting: Drafting, device: torch.device | str = "cpu") -> EngineSettings:
        """Read and check ``{"lossy": …}`` of ``--additional-config``, and load the heads that it names."""
        if not isinstance(given, Mapping):
            raise LossyValueError(f"`lossy` in `--additional-config` has to be a dict, but is {brief(given)}")
        check_keys("`lossy` in `--additional-config`", KEYS, given)
        mode, config, head, certificate = (given.get(key) for key in KEYS)
        mode, config = spelt(mode, config, "mode")
        if certificate is not None:
            certified = Certificate.load(certificate).setting.config
            mode = certified["lossy_mode"] if mode is None else mode
            config = {**((certified["lossy_config"] or {}) if config is None else config), "certificate": certificate}
        if mode is None and config is not None:
            raise LossyValueError("`config` of `lossy` in `--additional-config` needs a `mode`; add one")
        settings = cls(mode, config, head, drafting, device)
        settings.of_request({})
        return settings

    def of_request(self, extra: Mapping[str, Any] | None) -> LossyConfig | None:
        """Return the configuration of a request with these ``extra_args``; None for the engine's lossless decoding.

        Dicts may be written as JSON, because ``vllm_xargs`` of a request over HTTP has none.
        """
        asked = {name: _plain(name, value) for name, value in (extra or {}).items() if name.startswith("lossy")}
        key = _key(asked)
        if key not in self._parsed:
            if len(self._parsed) > 1000:  # requests may differ in a number
                self._parsed.clear()
            self._parsed[key] = self._parse(asked)
        return self._parsed[key]

    def check_request(
        self,
        extra: Mapping[str, Any] | None,
        temperature: float,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int | None = None,
    ) -> None:
        """Refuse a request if the engine can't or must not serve its lossy fields or its way of drawing."""
        config = self.of_request(extra)
        if config is None:
            return
        if config.seed is not None and seed is None and temperature > 0:
            raise LossyValueError(
                "`seed` in `lossy_config` repeats what a rule draws, but vLLM draws drafts and other tokens; give "
                f"the request its own `seed`, e.g. {config.seed}"
            )
        check_mode(config, temperature > 0, self.drafting.tokens)
        if (certificate := config.certificate) is not None:
            drawn = (temperature or None, top_k if temperature else 0, top_p if temperature else 1)
            if drawn[0] != certificate.temperature or max(0, drawn[1]) or drawn[2] < 1:
                raise LossyValueError(
                    f"`temperature` of a request has to be that of the engine's certificate, "
                    f"{certificate.temperature or 0:g} without top_k and top_p, but is {temperature:g} with top_k "
                    f"{top_k} and top_p {top_p:g}"
                )

    def _parse(self, asked: dict[str, Any]) -> LossyConfig | None:
        if unknown := next((name for name in asked if name not in FIELDS), None):
            raise LossyValueError(
                f"`{unknown}` of a request is unknown; it may have {list(FIELDS)}{nearest(unknown, FIELDS)}"
            )
        if asked and self.config is not None and "certificate" in self.config:
            raise LossyValueError(
                f"`{next(iter(asked))}` of a request can't be set, because the engine runs what its certificate "
                "certifies; leave it out"
            )
        mode, config = spelt(asked.get("lossy_mode"), asked.get("lossy_config"), "lossy_mode")
        own_mode = mode is None
        if own_mode and self.mode is None:
            if asked:
                raise LossyValueError(f"`{next(iter(asked))}` of a request needs a `lossy_mode`; add one")
            return None
        mode = self.mode if own_mode else mode
        inherited = own_mode and config is None
        config = self.config if inherited else config
        if asked:
            sources = self.head.values() if isinstance(self.head, Mapping) else [self.head]
            if (head := asked.get("lossy_head")) is not None and head not in (self.head, *sources):
                raise LossyValueError(
                    f"`lossy_head` of a request has to be one that the engine was started with, {self.head!r}, but is "
                    f"{brief(head)}"
                )
            _check_asked("lossy_config", {} if inherited else config, _ASKED)
        for key, reason in _ABSENT.items():
            if isinstance(config, Mapping) and config.get(key):
                raise LossyUnsupportedError(f"`{key}` in `lossy_config` can't be used in vLLM: {reason}; leave it out")
        parsed = LossyConfig.from_fields(mode, config, self._heads_of(mode), device=self.device)
        _check(parsed, self.drafting)
        return parsed

    def _heads_of(self, mode: Any) -> dict[str, Any] | None:
        """Return the loaded heads of a mode's rules; a certificate has its own."""
        users = [] if self.head is None else head_users(mode)  # a head that nothing uses is there for requests
        for name in users:
            source = self.head.get(name) if isinstance(self.head, Mapping) else self.head
            if name not in self._heads and source is not None:
                self._heads[name] = place_rule_head(REGISTRY[name], source, self.device)
        return {name: self._heads[name] for name in users if name in self._heads} or None


def _check_asked(place: str, values: Any, allowed: Collection[str]) -> None:
    """Refuse keys that a client must not set, e.g. because they name a folder, and values that cost too much."""
    for key, value in values.items() if isinstance(values, Mapping) else ():
        where = f"`{place}.{key!s:.100}` of a request"
        if key not in allowed:
            raise LossyValueError(f"{where} can't be set; leave it out{nearest(str(key), allowed)}")
        if isinstance(value, Mapping) and key not in _ABSENT:
            _check_asked(f"{place}.{key}", value, _INSIDE.get(key, ()))
        size, most = _length(value) if isinstance(value, str | list) else value, _MOST.get(key)
        a_token = place.endswith(".scope") and size is value
        if most is not None and not a_token and isinstance(size, int | float) and size > most:
            raise LossyValueError(f"{where} has to be at most {most}, but is {brief(size)}")


def _length(value: Any) -> int:
    """Return how many characters and token ids a marker, or a list of them, has."""
    return sum(map(_length, value)) if isinstance(value, list) else len(value) if isinstance(value, str) else 1


def _check(config: LossyConfig, drafting: Drafting) -> None:
    """Refuse what has no place in vLLM's step."""
    rule, obstacle = config.rule, None
    if rule.unverified_drafting is not None:
        obstacle = (
            "it commits tokens that the target does not read, but the target reads every token in vLLM's step; choose "
            "a rule that judges verified tokens, e.g. 'judge'"
        )
    elif "draft_hidden" in rule.needs:
        obstacle = "its head reads the draft's hidden states, which vLLM does not keep; use a head of target states"
    elif "draft_probs" in rule.needs and not drafting.keeps_probs:
        obstacle = (
            f"it reads the draft's probabilities, which {drafting.method!r} does not keep here; draft with a model and "
            'add `"draft_sample_method": "probabilistic"` to `--speculative-config`'
        )
    elif rule.dropped_heads is not None and rule.dropped_heads.dropout == AUTO:
        obstacle = "it chooses `dropout` by the prompt's states, which vLLM does not keep; give a number, e.g. 0.05"
    if obstacle is not None:
        raise LossyUnsupportedError(f"`lossy_mode` {rule.name!r} can't be used in this engine: {obstacle}")
    if config.certificate is not None and drafting.rounds_head:
        raise LossyUnsupportedError(
            "`certificate` in `--additional-config` was measured with the drafter's own LM head, which "
            "`draft_lm_head_quantization` in `--speculative-config` rounds, and other drafts make other texts; "
            "leave out either"
        )
    if config.limits.reads_text and not drafting.texts_on_host:
        name = "strict_on_quotes" if config.limits.scope is None else "scope"
        raise LossyUnsupportedError(
            f"`{name}` in `lossy_config` compares texts, which this engine does not know when it schedules steps "
            "ahead; start it with `--no-async-scheduling`"
        )


def _key(asked: Mapping[str, Any]) -> str:
    """Return a request's fields as one text; refuse those that are no data, or too much of them."""
    try:
        key = json.dumps(asked, sort_keys=True, default=repr)
    except (RecursionError, TypeError, ValueError) as error:
        raise LossyValueError(f"{brief([*asked])} of a request have to be plain data: {error}") from error
    if len(key) > LONGEST:
        raise LossyValueError(
            f"{brief([*asked])} of a request have to have at most {LONGEST:,} characters, but have {len(key):,}"
        )
    return key


def _plain(name: str, value: Any) -> Any:
    """Decode a string of JSON; return other values as they are."""
    if isinstance(value, str) and len(value) <= LONGEST and value.lstrip()[:1] in ("{", "["):
        return from_json(value, f"`{name}` of a request")
    return value
