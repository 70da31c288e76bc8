"""Looks up what the user, or a model's files, said about a field of ``generate()``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from transformers import GenerationConfig, PreTrainedModel

from ..compat.callers import without_defaults
from ..errors import LossyError


class GivenFields:
    """What was said about the fields of one call, before transformers fills in its own defaults.

    A field's value is the first of: keyword, ``generation_config`` argument, the model's own configuration.
    """

    def __init__(self, model: PreTrainedModel, keywords: Mapping[str, Any]) -> None:
        self._keywords = dict(keywords)
        self._argument, self._own = keywords.get("generation_config"), model.generation_config
        self._said = self._argument and without_defaults(self._argument, self._own)

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

    def explain(self, error: LossyError, field: str | None = None) -> None:
        """Let an error say which configuration set the ``field`` at fault; by default these are all that it names."""
        text = error.args[0]
        named = re.findall(r"`(\w+)`", text) if field is None else [field]
        at_fault = dict.fromkeys(name for name in named if field or not name.startswith("lossy_"))
        notes = [f"; `{name}` is set in {place}" for name in at_fault if (place := self._place(name))]
        error.args = (text.removesuffix("?") + "".join(notes) if notes else text,)

    def _place(self, name: str) -> str:
        """Return which configuration set a field; nothing for a keyword."""
        assistant = getattr(self._keywords.get("assistant_model"), "generation_config", None)
        places = {
            "": SimpleNamespace(**self._keywords),
            "the `generation_config` argument": self._said,
            "the model's `generation_config`": self._own,
            "the assistant's `generation_config`": assistant,
        }
        fields = ((place, getattr(config, "__dict__", {})) for place, config in places.items())  # no methods
        return next((place for place, given in fields if given.get(name) is not None), "")
