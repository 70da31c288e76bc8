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

    def __call__(self, name: str, *more: GenerationConfig | None) -> Any:
        """Return a field's value; look into the configurations ``more`` of an assistant last."""
        return self._said(name, *more)[0]

    def merged(self, name: str) -> Any:
        """Return the value that transformers' merge keeps: a keyword of None overrides a model's files."""
        return None if self._keywords.get(name, ...) is None else self(name)

    def origin(self, name: str, *more: GenerationConfig | None) -> str:
        """Return a field's place, to be read after "but is 4"; nothing for a keyword."""
        place = self._said(name, *more)[1]
        return place and f" in {place}"

    def remedy(self, name: str, value: Any, *more: GenerationConfig | None) -> str:
        """Return what to do about a field: leave out a keyword, or pass a ``value`` in place of a file's."""
        return f"pass `{name}={value!r}`" if self.origin(name, *more) else "leave it out"

    def _said(self, name: str, *more: GenerationConfig | None) -> tuple[Any, str]:
        """Return a field's value and place; no place for a keyword, and None for what nobody said."""
        if self._keywords.get(name) is not None:
            return self._keywords[name], ""
        places = [
            (self._argument, "the `generation_config` argument"),
            (self._own, f"the model's {compat.file_of(self._own)}"),
            *((config, f"the assistant's {compat.file_of(config)}") for config in more),
        ]
        found = ((getattr(config, name, None), place) for config, place in places)
        return next((said for said in found if said[0] is not None), (None, ""))
