"""Looks up what the user, or a model's files, said about a field of ``generate()``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import GenerationConfig, PreTrainedModel

from .. import compat
from ..errors import LossyError

_WORKING = {
    "num_assistant_tokens": "auto",
    "num_assistant_tokens_schedule": "constant",
    "assistant_confidence_threshold": 0,
    "num_beams": 1,
    "num_beam_groups": 1,
    "use_cache": True,
    "cache_implementation": "dynamic",
    **dict.fromkeys(("output_scores", "output_logits", "output_hidden_states", "output_attentions"), False),
    **dict.fromkeys(("constraints", "force_words_ids", "penalty_alpha", "dola_layers", "guidance_scale")),
    **dict.fromkeys(("assistant_early_exit", "speculation_type")),
}
"""What a user can pass in place of a field in a model's files."""
_LOSSY = {"lossy_mode": "lossless", "lossy_config": {}}
"""Likewise, for fields that most errors name although they are not at fault."""


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

    def explain(self, error: LossyError, field: str | None = None) -> None:
        """Let an error say which file set the ``field`` at fault, and what to pass in place of the file's value.

        By default these are all fields that it names.
        """
        text, working = error.args[0], {**_WORKING, **_LOSSY}
        fields = [name for name in _WORKING if f"`{name}`" in text] if field is None else [field]
        notes = [
            f"; `{name}` is set in {place}: pass `{name}={working[name]!r}`"
            for name in fields
            if name in working and (place := self._place(name))
        ]
        if notes:
            error.args = (text.removesuffix("?").removesuffix("; leave it out") + "".join(notes),)

    def _place(self, name: str) -> str:
        """Return which file set a field; nothing for a keyword, or for a pipeline's default, which no file has."""
        value = self(name)
        if self._keywords.get(name) is not None or (value is not None and compat.pipeline_with_default(name, value)):
            return ""
        assistant = getattr(self._keywords.get("assistant_model"), "generation_config", None)
        for config in (self._said, self._own, assistant):
            if getattr(config, name, None) is not None:
                if config is self._said:
                    return "the `generation_config` argument"
                return f"the {'model' if config is self._own else 'assistant'}'s {compat.file_of(config)}"
        return ""
