"""Who takes part in a comparison: the target alone, stock assisted generation, and rules of this package."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from ..acceptors import REGISTRY
from ..config import head_type, parse
from ..drafting.draft_length import DEFAULT_NUM_TOKENS
from ..enabling import enabled

DEFAULT_CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "topk": {"k": 2},
    "relaxed": {"top_n": 10, "delta": 0.6},
    "thresholds": {"threshold_single": 0.3},
}
"""Usual settings of rules whose own defaults are lossless or unusual; all others take part as they are."""


@dataclass(frozen=True, eq=False)
class Models:
    """Who generates.

    Attributes
    ----------
    target, draft
        Models with one tokenizer.
    heads
        Trained heads by the name of the rule that uses them.
    """

    target: PreTrainedModel
    draft: PreTrainedModel
    heads: Mapping[str, nn.Module] = field(default_factory=dict)


@dataclass(frozen=True)
class Contender(ABC):
    """One way to generate.

    Attributes
    ----------
    label
        Its name in tables and files.
    """

    label: str

    @abstractmethod
    def ready(self, models: Models) -> AbstractContextManager[None]:
        """Prepare the models inside a block, and leave them as they were."""

    @abstractmethod
    def keywords(self, models: Models, seed: int) -> dict[str, Any]:
        """Return what ``generate()`` is told besides prompt, length and temperature."""

    @property
    def config(self) -> dict[str, Any]:
        """Its settings, as they are written to files."""
        return {}


@dataclass(frozen=True)
class TargetAlone(Contender):
    """Plain ``generate()``."""

    label: str = "target alone"

    def ready(self, models: Models) -> AbstractContextManager[None]:
        return nullcontext()

    def keywords(self, models: Models, seed: int) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class StockAssisted(Contender):
    """Assisted generation of transformers itself, with as many drafted tokens per round as the rules have.

    Its own defaults would draft up to 20 tokens and stop at the first of which the draft is less sure than 40 %;
    γ is read from the assistant's configuration alone, and set there for as long as it generates.
    """

    label: str = "stock assisted"
    gamma: int = 5

    @contextmanager
    def ready(self, models: Models) -> Iterator[None]:
        config = models.draft.generation_config
        wanted = {
            "num_assistant_tokens": self.gamma,
            "num_assistant_tokens_schedule": "constant",
            "assistant_confidence_threshold": 0.0,
        }
        before = {name: getattr(config, name, None) for name in wanted}
        try:
            for name, value in wanted.items():
                setattr(config, name, value)
            yield
        finally:
            for name, value in before.items():
                setattr(config, name, value)

    def keywords(self, models: Models, seed: int) -> dict[str, Any]:
        return {"assistant_model": models.draft}

    @property
    def config(self) -> dict[str, Any]:
        return {"num_assistant_tokens": self.gamma}


@dataclass(frozen=True)
class WithRule(Contender):
    """A rule, or several, with a seed of its own.

    A seeded run never gives speculation up for being slow: what is measured is the rule.

    Attributes
    ----------
    mode, settings
        ``lossy_mode`` and ``lossy_config``.
    gamma
        ``num_assistant_tokens``.
    """

    mode: Any = "lossless"
    settings: Mapping[str, Any] = field(default_factory=dict)
    gamma: int | str = 5

    def ready(self, models: Models) -> AbstractContextManager[None]:
        return enabled(models.target)

    def keywords(self, models: Models, seed: int) -> dict[str, Any]:
        names = rule_names(self.mode)
        heads = {name: models.heads[name] for name in names if name in models.heads}
        head = {"lossy_head": heads if len(names) > 1 else heads[names[0]]} if heads else {}
        return {
            "assistant_model": models.draft,
            "num_assistant_tokens": self.gamma,
            "lossy_mode": self.mode,
            "lossy_config": {**self.settings, "seed": seed},
            **head,
        }

    @property
    def config(self) -> dict[str, Any]:
        return {"lossy_mode": self.mode, "lossy_config": dict(self.settings), "num_assistant_tokens": self.gamma}


def rule_names(mode: Any) -> list[str]:
    """Return the names in a ``lossy_mode``."""
    return [mode] if isinstance(mode, str) else list(mode)


def field_of_all(models: Models, gamma: int | str, do_sample: bool) -> list[Contender]:
    """Return everybody: the target alone, stock, lossless, and every rule that can differ from it here.

    Rules that use a head take part where there is one.
    """
    rules = []
    for name, rule in REGISTRY.items():
        head = models.heads.get(name)
        if head_type(rule) is not None and head is None:
            continue
        settings = DEFAULT_CONFIGS.get(name, {})
        if name == "lossless" or not parse(name, dict(settings), head).is_lossless(do_sample):
            rules.append(WithRule(name, name, settings, gamma))
    return [TargetAlone(), StockAssisted(gamma=fixed(gamma)), *rules]


def fixed(gamma: int | str) -> int:
    """Return γ for stock, which can't choose one."""
    return DEFAULT_NUM_TOKENS if gamma == "auto" else gamma
