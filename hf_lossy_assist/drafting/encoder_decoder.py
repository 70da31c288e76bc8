"""Drafting for a target that has an encoder."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from ..call.prepared import Prepared
from ..compat import DraftForwardInputs, device_of, encode, forward_accepts, new_cross_cache
from ..errors import LossyUnsupportedError, LossyValueError
from ..forwards import Forwards
from ..forwards.growing import GrowingForwards
from .draft_length import DraftLength
from .model import ModelDrafter


def check_encoder_decoder_draft(target: PreTrainedModel, draft: PreTrainedModel) -> None:
    """Raise unless ``draft`` can read what the target's encoder reads, or what that says."""
    if not draft.config.is_encoder_decoder and not forward_accepts(draft, "encoder_outputs"):
        raise LossyUnsupportedError(
            f"`assistant_model` {type(draft).__name__} can't see what {type(target).__name__}'s encoder sees; use an "
            "encoder-decoder model, or a decoder that takes `encoder_outputs`, such as WhisperForCausalLM"
        )


class EncoderDecoderDrafter(ModelDrafter):
    """Drafts with a decoder that looks at an encoder's states: its own encoder's, or the target's where it has none.

    For one sequence. Distil-Whisper's decoder, loaded as a ``WhisperForCausalLM``, shares the target's encoder.

    Parameters
    ----------
    model, draft_length, **settings
        As for :class:`ModelDrafter`.
    call
        What ``generate()`` prepared for the target.
    """

    def __init__(
        self, model: PreTrainedModel, draft_length: int | DraftLength, *, call: Prepared, **settings: Any
    ) -> None:
        settings.pop("attention_mask", None)  # of the encoder's input, not of the text
        mask, device = call.inputs.get("attention_mask"), device_of(model)
        if not model.config.is_encoder_decoder:
            states = call.inputs["encoder_outputs"][0]
            self._encoded = {"encoder_outputs": (states.to(device=device, dtype=model.dtype),)}
        elif call.encoder_input is None:
            raise LossyValueError(
                "`encoder_outputs` are the target's, but `assistant_model` has an encoder of its own; pass the "
                "encoder's input instead"
            )
        else:
            self._encoded = {"encoder_outputs": encode(model, call.encoder_input, mask)}
            if mask is not None:
                self._encoded["attention_mask"] = mask.to(device)
        super().__init__(model, draft_length, **settings)

    def _growing_forwards(self) -> Forwards:
        # The decoder's position is the cache's; a tensor for its mask would be the encoder's elsewhere.
        carried = {"past_key_values": new_cross_cache(), "use_cache": True, **self._encoded}
        return GrowingForwards(DraftForwardInputs(self.model), carried, 0)
