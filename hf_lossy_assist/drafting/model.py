"""A draft model that shares the target's tokenizer: its laws, its runner, and what is asked of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..compat.caches import cache_name, new_cache
from ..compat.inputs import DraftForwardInputs, ForwardInputs
from ..compat.models import device_of, forward_accepts, has_recurrent_state, obstacle_in_adapter
from ..compat.multimodal import PreparedInputs
from ..compat.positions import keeps_positions, learned_positions
from ..compat.probe import ask, obstacle_to_rollback
from ..core.distributions import Randomness
from ..errors import LossyUnsupportedError
from ..models.lm_head_hook import lm_head_hook
from ..models.recurrent import RecurrentDraftRunner, padding_before
from ..models.runner import DynamicCacheRunner, ModelRunner
from .chain import Source
from .vocabulary import Vocabulary, check_vocabularies

NO_END = 2**31
"""A length that no text reaches."""


class ModelSource(Source):
    """A draft model's own forwards and cache, by a ``runner`` such as :func:`draft_runner` makes.

    It calls the model directly, without a nested ``generate()``, so nothing is validated, copied or written to a
    configuration between rounds. With ``keep_hidden``, the inputs of the LM head are kept.
    """

    def __init__(self, runner: ModelRunner, vocabulary: Vocabulary | None = None, keep_hidden: bool = False) -> None:
        super().__init__(runner, vocabulary)
        self.positions = learned_positions(self.model)
        if keep_hidden:
            runner.hook = self._hook = lm_head_hook(self.model, Randomness())


def draft_runner(
    model: PreTrainedModel,
    mask: Tensor | None = None,
    max_length: int = NO_END,
    inputs: PreparedInputs | None = None,
) -> ModelRunner:
    """Return a runner on a dynamic cache of its own, or with saved states, of texts up to ``max_length``.

    ``mask`` ``(B, L)`` is that of padded prompts; ``inputs`` are those of a model that reads more than text.
    """
    model = model if inputs is None else inputs.model
    carried: dict[str, Any] = {cache_name(model): new_cache(model), "use_cache": True}
    if forward_accepts(model, "logits_to_keep"):
        carried["logits_to_keep"] = 1
    length, kind, device = 0, DraftForwardInputs, device_of(model)
    if inputs is None and keeps_positions(model):
        length, carried["position_ids"] = 1, torch.zeros(1, 1, dtype=torch.long, device=device)
    if inputs is not None:
        carried |= inputs.carried
        length, kind = inputs.length, ForwardInputs
    elif mask is not None and not bool(mask.all()):  # else models would ask in every forward
        mask = mask.to(device)
        length = mask.shape[1]
        carried["attention_mask"] = mask
        if forward_accepts(model, "position_ids"):
            carried["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    hands_on = inputs is not None  # such as what has been encoded of an image
    if has_recurrent_state(model):
        return RecurrentDraftRunner(
            ForwardInputs(model), carried, length, padding=padding_before(mask), hands_on=hands_on,
            several=ask(model).several,
        )  # fmt: skip
    # Only what fills shorter drafts up counts further.
    positions = carried.get("position_ids", torch.tensor([[length - 1]]))
    last = positions[..., -1:] + (min(max_length, NO_END) - length)  # a caller's may be larger than any tensor holds
    return DynamicCacheRunner(kind(model), carried, length, last_position=last, hands_on=hands_on)


def check_draft_model(target: PreTrainedModel, draft: PreTrainedModel) -> None:
    """Raise unless ``draft`` can draft for ``target`` in the target's tokens."""
    check_vocabularies(target, draft)
    check_decoder(draft)


def check_decoder(draft: PreTrainedModel) -> None:
    """Raise unless ``draft`` is a decoder that reads text alone, with a cache that can be rolled back."""
    if (refusal := obstacle_in_adapter(draft)) is not None:
        raise LossyUnsupportedError(f"`assistant_model` has {refusal}")
    if draft.config.is_encoder_decoder:
        raise LossyUnsupportedError(
            f"`assistant_model` has to be a decoder-only model, but is a {type(draft).__name__}"
        )
    if (refusal := obstacle_to_rollback(draft, several=False)) is not None:
        raise LossyUnsupportedError(
            f"`assistant_model` has to be a model whose cache can be rolled back, but {refusal}"
        )


def mask_of(ids: Tensor, model_kwargs: dict[str, Any]) -> Tensor | None:
    """Return the attention mask of ``ids`` ``(B, L)``: the end of the target's, which may cover a cache too."""
    mask = model_kwargs.get("attention_mask")
    return None if mask is None else mask[:, -ids.shape[1] :]
