"""The operator's settings of a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from transformers import PreTrainedModel

from ...heads.checks import SIZE

FIELD = "lossy_assistant"
"""The field of a ``generation_config.json`` that names the draft model: a Hub id or a folder."""


@dataclass(frozen=True)
class RequestLimits:
    """The upper limits of one request; each is a positive integer.

    Parameters
    ----------
    prompt_tokens, new_tokens
        Tokens of the prompt and of the answer.
    stop_strings, stop_characters
        Stop strings, and their characters in total: transformers compares each string with the vocabulary.
    num_assistant_tokens
        Drafted tokens per round, also by prompt lookup.
    num_paths, window, max_draft
        The settings of ``dropmatch``, ``fly`` and ``sprinter``.
    tree_depth, tree_top_k, tree_nodes
        The settings of ``tree``.
    marker_length
        Characters or token ids of each marker of ``scope``.
    """

    prompt_tokens: int = 65_536
    new_tokens: int = 16_384
    stop_strings: int = 4
    stop_characters: int = 128
    num_assistant_tokens: int = 64
    num_paths: int = 32
    window: int = 64
    max_draft: int = 128
    tree_depth: int = 16
    tree_top_k: int = 16
    tree_nodes: int = 256
    marker_length: int = 64

    def __post_init__(self) -> None:
        for x in fields(self):
            SIZE.check(x.name, getattr(self, x.name))


@dataclass(frozen=True)
class Settings:
    """Replacements in a model's generation configuration, and what requests may ask for."""

    assistant: str | None = None  # the draft model, as in the field `lossy_assistant`
    mode: Any = None  # as in `lossy_mode`; the next two as in `lossy_config` and `lossy_head`
    config: Mapping[str, Any] | None = None
    head: str | None = None
    # Heads that a request may name besides the model's own. A request could otherwise read any folder of the machine,
    # or download any repository.
    allowed_heads: tuple[str, ...] = ()
    allow_compile: bool = False  # whether a request may have forwards compiled, which takes minutes
    limits: RequestLimits = RequestLimits()
    num_assistant_tokens: int | str | None = None  # drafted tokens per round, if they replace the model's

    def apply(self, model: PreTrainedModel) -> None:
        """Write the settings into a model's generation configuration."""
        if self.mode is not None:
            # Settings and head of the model's own rule don't belong to this one.
            model.generation_config.lossy_mode = self.mode
            model.generation_config.lossy_config = None if self.config is None else dict(self.config)
            model.generation_config.lossy_head = self.head
        if self.num_assistant_tokens is not None:
            model.generation_config.num_assistant_tokens = self.num_assistant_tokens
        if self.assistant is not None:
            setattr(model.generation_config, FIELD, self.assistant)


def nested(config: Any, *keys: str) -> Any:
    """Return the entry of a ``lossy_config`` under these nested keys, or None."""
    for key in keys:
        config = config.get(key) if isinstance(config, Mapping) else None
    return config


def above(what: str, value: float, limit: str, limits: RequestLimits) -> str:
    """Return the refusal of a value above a limit."""
    most = getattr(limits, limit)
    return f"{what} of a request has to be at most {most}, which is this server's limit `{limit}`, but is {value}"
