"""Drafting for a target that has an encoder."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from ..call.prepared import Prepared
from ..compat import encode, forward_accepts, new_cross_cache
from ..errors import LossyUnsupportedError, LossyValueError
from .draft_length import Window
from .model import ModelDrafter


def check_encoded_draft(target: PreTrainedModel, draft: PreTrainedModel) -> None:
    """Raise unless ``draft`` can read what the target's encoder reads, or what that says."""
    if not draft.config.is_encoder_decoder and not forward_accepts(draft, "encoder_outputs"):
        raise LossyUnsupportedError(
            f"`assistant_model` {type(draft).__name__} can't see what {type(target).__name__}'s encoder sees; use an "
            "encoder-decoder model, or a decoder that takes `encoder_outputs`, such as WhisperForCausalLM"
        )


class EncodedDrafter(ModelDrafter):
    """Drafts with a decoder that looks at an encoder's states: its own encoder's, or the target's where it has none.

    For one sequence. Distil-Whisper's decoder, loaded as a ``WhisperForCausalLM``, shares the target's encoder.

    Parameters
    ----------
    model, window, **settings
        As for :class:`ModelDrafter`.
    call
        What ``generate()`` prepared for the target.
    """

    def __init__(self, model: PreTrainedModel, window: int | Window, *, call: Prepared, **settings: Any) -> None:
        settings.pop("attention_mask", None)  # of the encoder's input, not of the text
        super().__init__(model, window, **settings)
        if model.config.is_encoder_decoder and call.encoder_input is None:
            raise LossyValueError(
                "`encoder_outputs` are the target's, but `assistant_model` has an encoder of its own; pass the "
                "encoder's input instead"
            )
        mask = call.inputs.get("attention_mask")
        if model.config.is_encoder_decoder:
            self._seen = {"encoder_outputs": encode(model, call.encoder_input, mask)}
            if mask is not None:
                self._seen["attention_mask"] = mask.to(self.device)
        else:
            states = call.inputs["encoder_outputs"][0]
            self._seen = {"encoder_outputs": (states.to(device=self.device, dtype=model.dtype),)}
        self._ids = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"

    def reset(self) -> None:
        super().reset()
        self._cache = new_cross_cache()

    def _inputs(self, new: Tensor, candidate: Tensor) -> dict[str, Any]:
        # The decoder's position is the cache's; a tensor for its mask would be the encoder's elsewhere.
        return {self._ids: new, **self._seen}
