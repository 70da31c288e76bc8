"""All that ``generate()`` has prepared when decoding begins."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.utils import ModelOutput

from ..compat.caches import CACHE_NAMES, cache_of, empty_copy, tokens_in
from ..compat.inputs import padding_token
from ..compat.multimodal import ENCODED, PreparedInputs, row_of_encoded
from ..models.processing import of_row


@dataclass(frozen=True, eq=False)
class Prepared:
    """One call, ready to decode: processors, criteria and configuration are as ``generate()`` merged them."""

    model: PreTrainedModel  # the target
    ids: Tensor  # (B, L) prompts
    processors: LogitsProcessorList
    stopping_criteria: StoppingCriteriaList
    config: GenerationConfig
    inputs: dict[str, Any]  # the model's inputs besides `ids`: cache, mask, positions
    draft_inputs: PreparedInputs | None = None  # those of a draft model that reads more than text
    streamer: Any = None
    tokenizer: Any = None
    encoder_input: Any = None  # the input of the target's encoder, if the caller gave it
    synced_gpus: bool = False  # whether all processes run as many forwards as the slowest
    of_batch: bool = False  # whether this is one row of a batch
    inspected: bool = False  # whether every token's record includes the draft's distribution

    @cached_property
    def batch(self) -> int:
        return len(self.ids)

    @cached_property
    def cache(self) -> Any:
        """The cache that ``generate()`` has made, or the caller's."""
        return cache_of(self.inputs)

    @cached_property
    def held(self) -> int:
        """How many tokens the caller's cache holds."""
        return tokens_in(self.cache)

    @property
    def mask(self) -> Tensor | None:
        """``(B, L)`` the prompts' mask."""
        return mask_of(self.ids, self.inputs)

    @property
    def quotable(self) -> Tensor:
        """``(B, P)`` what texts may quote: the prompts, or the encoder's where it reads tokens; padding is negative."""
        ids, mask = self.ids, self.inputs.get("attention_mask")
        if isinstance(encoder := self.encoder_input, Tensor) and not encoder.is_floating_point():
            ids = encoder.to(ids.device).repeat_interleave(self.batch // len(encoder), dim=0)
        return ids if mask is None or mask.shape != ids.shape else ids.masked_fill(mask == 0, -1)

    def row(self, row: int) -> Prepared:
        """Return one row as a call of its own; its inputs hold no cache."""
        ids = self.ids[row : row + 1]
        inputs = {
            name: value[..., row : row + 1, :]
            for name, value in self.inputs.items()
            if isinstance(value, Tensor) and value.dim() > 1 and value.shape[-1] == ids.shape[1]
        }
        return replace(
            self, ids=ids, inputs=inputs, draft_inputs=None, processors=of_row(self.processors, row, self.batch)
        )

    def alone(self, row: int) -> Prepared:
        """Return one row with all of its inputs and an empty cache of its own."""
        encoder = self.encoder_input
        # Several sequences of one prompt share the encoder's input.
        own = row // (self.batch // len(encoder)) if isinstance(encoder, Tensor) else row
        drafts = self.draft_inputs
        return replace(
            self.row(row),
            inputs=self._inputs_of_row(self.model, self.inputs, row),
            draft_inputs=drafts and replace(drafts, carried=self._inputs_of_row(drafts.model, drafts.carried, row)),
            encoder_input=encoder[own : own + 1] if isinstance(encoder, Tensor) else encoder,
            of_batch=True,
        )

    def _inputs_of_row(self, model: PreTrainedModel, inputs: Mapping[str, Any], row: int) -> dict[str, Any]:
        own = {name: self._of_row(name, value, row) for name, value in inputs.items() if name != ENCODED}
        if encoded := inputs.get(ENCODED):
            own[ENCODED] = row_of_encoded(model, encoded, self.ids, row)
        return own

    def _of_row(self, name: str, value: Any, row: int) -> Any:
        if name in CACHE_NAMES:
            return empty_copy(value)
        if isinstance(value, ModelOutput):
            return type(value)(**{key: self._of_row(key, part, row) for key, part in value.items()})
        if isinstance(value, tuple):  # layers
            return tuple(self._of_row(name, part, row) for part in value)
        if not isinstance(value, Tensor):
            return copy.deepcopy(value)  # some collect what is read of a sound
        if value.dim() == 0:
            return value
        batched = value.dim() - 2 if name == "position_ids" else 0
        return value.narrow(batched, row, 1) if value.shape[batched] == self.batch else value

    @cached_property
    def padding(self) -> int:
        """The token that fills rows up; any token where the model has none."""
        return padding_token(self.config)


def mask_of(ids: Tensor, model_kwargs: dict[str, Any]) -> Tensor | None:
    """Return the attention mask of ``ids`` ``(B, L)``, from which positions are counted.

    It is the end of the target's, which may cover a cache too, and be of any type.
    """
    mask = model_kwargs.get("attention_mask")
    return None if mask is None else mask[:, -ids.shape[1] :].long()
