"""Looks up what the user, or a model's files, said about a field of ``generate()``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import GenerationConfig, PreTrainedModel

from .. import compat


class GivenFields:
    """What was said about the fields of one call, before transformers fills in its own defaults.

    A field's value is the first of: keyword, ``generation_config`` argument, the model's own configuration.
    """

    def __init__(self, model: PreTrainedModel, keywords: Mapping[str, Any]) -> None:
        self._keywords = dict(keywords)
        self._argument, self._own = keywords.get("generation_config"), model.generation_config
        self._said = self._argument and compat.without_defaults(self._argument, self._own)

    def __call__(self, name: str, *more: GenerationConfig | None) -> Any:
        """Return a field's value; look into the configurations ``more`` of an assistant last."""
        value = self._keywords.get(name)
        for config in (self._said, self._own, *more):
            if value is not None:
                break
            value = getattr(config, name, None)
        return value

    def merged(self, *names: str) -> dict[str, Any]:
        """Return the values, other than None, that transformers' merge keeps: a keyword of None overrides files."""
        values = {}
        for name in names:
            if (value := self._keywords.get(name, ...)) is ...:
                value = getattr(self._argument, name, None)
                value = getattr(self._own, name, None) if value is None else value
            if value is not None:
                values[name] = value
        return values

    def origin(self, name: str, *more: GenerationConfig | None) -> str:
        """Return a field's place, to be read after "but is 4"; nothing for a keyword."""
        if self._keywords.get(name) is not None:
            return ""
        for config in (self._said, self._own, *more):
            if getattr(config, name, None) is not None:
                if config is self._said:
                    return " in the `generation_config` argument"
                return f" in the {'model' if config is self._own else 'assistant'}'s {compat.file_of(config)}"
        return ""

    def remedy(self, name: str, value: Any, *more: GenerationConfig | None) -> str:
        """Return what to do about a field: leave out a keyword, or pass a ``value`` in place of a file's."""
        return f"pass `{name}={value!r}`" if self.origin(name, *more) else "leave it out"
