"""What ``generate`` and ``chat`` have in common: what drafts, and which rule decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import set_seed

from ..acceptors import REGISTRY
from ..config import head_type, parse
from ..drafting.vocabulary import same_tokenizer
from ..errors import LossyValueError
from ..evaluation.modes import parse_config
from .models import LoadedModels
from .options import parse_mode, stored

DRAFTED, LOOKED_UP = 8, 10
"""Tokens per round by default, of a model and of prompt lookup."""


@dataclass(frozen=True)
class AssistedDecoding:
    """A rule with its settings, and what drafts for it, as the options name them."""

    mode: Any
    config: dict[str, Any] = field(default_factory=dict)
    head: Any = None
    gamma: int | None = None
    lookup: int | None = None  # tokens that prompt lookup drafts, where it does

    @classmethod
    def of(
        cls,
        mode: str | None,
        config: Sequence[str] | None,
        head: str | None,
        gamma: int | None,
        seed: int | None = None,
        **more: Any,
    ) -> AssistedDecoding:
        """Read the options ``--mode``, ``--config``, ``--head``, ``--num-assistant-tokens`` and ``--seed``."""
        found = stored(mode, config, head, gamma)
        rule, settings, head, gamma = found or (parse_mode(mode or "lossless"), parse_config(config or ()), head, gamma)
        if seed is not None:
            settings.setdefault("seed", seed)
            set_seed(seed)
        return cls(rule, settings, head, gamma, **more)

    @property
    def rules_with_head(self) -> list[str]:
        """The rules that use a trained head."""
        names = self.mode if isinstance(self.mode, list) else [self.mode]
        return [name for name in names if name in REGISTRY and head_type(REGISTRY[name]) is not None]

    def check(self, assistant: str | None, *, brings_heads: bool) -> None:
        """Refuse options that don't go together, before any weights are read; a pair ``brings_heads`` of its own."""
        if self.lookup is not None and assistant is not None:
            raise LossyValueError(
                f"`--prompt-lookup` {self.lookup} drafts without a model; leave it or `--assistant` out"
            )
        self.check_rule(brings_heads=brings_heads)

    def check_rule(self, *, brings_heads: bool) -> None:
        """Refuse a rule that can't work."""
        if self.head is not None or not brings_heads or not self.rules_with_head:
            parse(self.mode, self.config, self.head)

    def keywords(self, loaded: LoadedModels) -> dict[str, Any]:
        """Return what ``generate()`` is told about drafting and the rule."""
        own = {name: loaded.heads[name] for name in self.rules_with_head if name in loaded.heads}
        rule = {"lossy_mode": self.mode, "lossy_config": self.config, "lossy_head": self.head or own or None}
        if self.lookup is not None:
            return rule | {"prompt_lookup_num_tokens": self.lookup}
        drafting = {"assistant_model": loaded.draft, "num_assistant_tokens": self.gamma or DRAFTED}
        other = loaded.draft_tokenizer
        if other is None or same_tokenizer(loaded.tokenizer, other):
            return rule | drafting
        return rule | drafting | {"tokenizer": loaded.tokenizer, "assistant_tokenizer": other}
