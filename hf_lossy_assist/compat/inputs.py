"""What goes into the target's forward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel
from transformers.generation import candidate_generator as _candidates

from ..decoding.buffers import GrowingTensor, counting, ones
from .caches import tokens_in
from .models import device_of, forward_accepts

if TYPE_CHECKING:
    from ..decoding.batch_layout import RowShift

_CROSS_MASKS = ("cross_attention_mask", "image_attention_mask")
_IN_LINE_WITH_IDS = ("attention_mask", "position_ids", "token_type_ids", "mm_token_type_ids")


def padding_token(config: GenerationConfig) -> int:
    """Return the token that fills rows up in a prepared call; any, where the model has none."""
    token = getattr(config, "_pad_token_tensor", None)
    return 0 if token is None else int(token)


def ending_tokens(config: GenerationConfig) -> set[int]:
    """Return the tokens that end a text in a prepared call."""
    tokens = getattr(config, "_eos_token_tensor", None)
    return set() if tokens is None else set(tokens.flatten().tolist())


class ForwardInputs:
    """The inputs of a target's forwards, made from what ``generate()`` carries from one to the next.

    Masks and positions are written ahead of the text, and read as far as it has come.

    Parameters
    ----------
    model
        The target.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.with_encoder = model.config.is_encoder_decoder
        prefix = "decoder_" if self.with_encoder else ""
        self._ids = f"{prefix}input_ids"
        self._mask, self._positions = f"{prefix}attention_mask", f"{prefix}position_ids"
        self._going_on = {self._mask: ones, self._positions: counting}
        self._lines: dict[str, tuple[torch.Tensor, GrowingTensor]] = {}
        self._usual = _as_the_mixin(model, "_update_model_kwargs_for_generation")

    def of_text(
        self, text: torch.LongTensor, carried: dict[str, Any], seen: int, longer: int, keep: int, first: bool
    ) -> dict[str, Any]:
        """Return the inputs of one forward over ``text`` ``(B, L)`` from token ``seen`` on.

        Parameters
        ----------
        text
            Committed and drafted tokens.
        carried
            What is carried from one forward to the next.
        seen
            How many tokens the cache holds.
        longer
            How many tokens there are beyond those that mask and positions cover.
        keep
            At how many positions, counted from the end, logits are wanted.
        first
            Whether this is a run's first forward.
        """
        kwargs = dict(carried)
        mask = kwargs.get(self._mask)
        if mask is not None and any(name in kwargs for name in _CROSS_MASKS):  # they grow with it
            kwargs = _candidates._prepare_attention_mask(kwargs, mask.shape[1] + longer, self.with_encoder)
        kwargs |= self._longer(carried, longer)
        if (types := kwargs.get("token_type_ids")) is not None:
            kwargs = _candidates._prepare_token_type_ids(kwargs, types.shape[1] + longer)
        if (types := kwargs.get("mm_token_type_ids")) is not None:
            kwargs["mm_token_type_ids"] = nn.functional.pad(types, (0, longer))  # all text
        inputs = self.model.prepare_inputs_for_generation(
            text, next_sequence_length=text.shape[1] - seen if seen else None, is_first_iteration=first, **kwargs
        )
        if "logits_to_keep" in inputs:
            inputs["logits_to_keep"] = keep
        return inputs

    def after(self, outputs: Any, model_kwargs: dict[str, Any], committed: int) -> dict[str, Any]:
        """Bring what is carried on in line with ``committed`` more tokens: mask, positions, newest cache.

        As transformers does, in the same dictionary, which a drafter may have kept.
        """
        longer = self._longer(model_kwargs, committed) if self._usual else {}
        rest = {name: value for name, value in model_kwargs.items() if name not in longer}
        rest = self.model._update_model_kwargs_for_generation(
            outputs, rest, is_encoder_decoder=self.with_encoder, num_new_tokens=committed
        )
        model_kwargs.update(rest)
        self._carry(model_kwargs, longer)
        return model_kwargs

    def move(self, carried: dict[str, Any], shift: RowShift, ids: torch.Tensor) -> None:
        """Let inputs that stand in line with ``ids`` ``(B, S)`` follow the rows of a batch."""
        for name in _IN_LINE_WITH_IDS:
            if (values := carried.get(name)) is not None:
                carried[name] = shift.take(values, 0)
        if carried.get("attention_mask") is None and len(set(shift.ends)) > 1:
            carried["attention_mask"] = shift.take(torch.ones_like(ids), 0)

    def _longer(self, model_kwargs: dict[str, Any], count: int) -> dict[str, torch.Tensor]:
        """Return mask and positions, as far as there are any, for ``count`` more tokens."""
        return {
            name: self._line(name, values).upto(values.shape[-1] + count)
            for name in self._going_on
            if (values := model_kwargs.get(name)) is not None
        }

    def _line(self, name: str, values: torch.Tensor) -> GrowingTensor:
        """Return what goes on from ``values``: a line that is known, if they are what was taken from it last."""
        known, line = self._lines.get(name, (None, None))
        if values is not known:
            line = GrowingTensor(values, self._going_on[name])
            self._lines[name] = values, line
        return line

    def _carry(self, carried: dict[str, Any], longer: Mapping[str, torch.Tensor]) -> None:
        for name, values in longer.items():
            carried[name] = values
            self._lines[name] = values, self._lines[name][1]


class PlainForwardInputs(ForwardInputs):
    """The same where there are only tokens, masks and positions, and nothing but slicing is left to do."""

    NAMES = frozenset({"attention_mask", "position_ids", "past_key_values", "use_cache", "logits_to_keep"})
    _WANTED = frozenset({"output_hidden_states", "output_attentions"})

    @classmethod
    def fits(cls, model: PreTrainedModel, ids: torch.Tensor, model_kwargs: dict[str, Any]) -> bool:
        """Tell whether transformers itself would only slice."""
        given = {name for name, value in model_kwargs.items() if value is not None}
        return (
            given >= cls.NAMES - {"attention_mask"}
            and given <= cls.NAMES | cls._WANTED
            and _as_the_mixin(model, "prepare_inputs_for_generation")
            and _as_the_mixin(model, "_update_model_kwargs_for_generation")
            and not model.config.is_encoder_decoder
            and not forward_accepts(model, "cache_position")
            and ids.device == model.device
        )

    def of_text(
        self, text: torch.LongTensor, carried: dict[str, Any], seen: int, longer: int, keep: int, first: bool
    ) -> dict[str, Any]:
        return self.of_tokens(text.narrow(1, seen, text.shape[1] - seen), carried, longer, keep)

    def of_tokens(self, tokens: torch.LongTensor, carried: dict[str, Any], longer: int, keep: int) -> dict[str, Any]:
        """Return the same for ``tokens`` ``(B, k)``, which follow those that the cache holds."""
        inputs = dict(carried)
        if (mask := carried.get(self._mask)) is not None:
            inputs[self._mask] = self._line(self._mask, mask).upto(mask.shape[-1] + longer)
        if (positions := carried.get(self._positions)) is not None:
            end = positions.shape[-1] + longer
            new = self._line(self._positions, positions).between(end - tokens.shape[1], end)
            inputs[self._positions] = self._shown(new)
        inputs[self._ids] = self._shown(tokens)
        if "logits_to_keep" in carried:
            inputs["logits_to_keep"] = keep
        return inputs

    def _shown(self, values: torch.Tensor) -> torch.Tensor:
        """Return what the model is given: a copy, because a user's hook may keep it, and the text is written to."""
        return values.clone(memory_format=torch.contiguous_format)

    def after(self, outputs: Any, model_kwargs: dict[str, Any], committed: int) -> dict[str, Any]:
        self._carry(model_kwargs, self._longer(model_kwargs, committed))
        if outputs is not None:
            model_kwargs["past_key_values"] = outputs.past_key_values
        return model_kwargs

    def move(self, carried: dict[str, Any], shift: RowShift, ids: torch.Tensor) -> None:
        super().move(carried, shift, ids)
        mask = carried.get("attention_mask")
        if mask is not None and "position_ids" not in carried and forward_accepts(self.model, "position_ids"):
            carried["attention_mask"] = mask = mask.to(device_of(self.model))
            carried["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)


class DraftForwardInputs(PlainForwardInputs):
    """The same for a draft model, whose every step has one: it is given views."""

    def _shown(self, values: torch.Tensor) -> torch.Tensor:
        return values


def forward_inputs(model: PreTrainedModel, ids: torch.Tensor, model_kwargs: dict[str, Any]) -> ForwardInputs:
    """Return what makes the inputs of a model's forwards over texts that begin with ``ids``."""
    kind = PlainForwardInputs if PlainForwardInputs.fits(model, ids, model_kwargs) else ForwardInputs
    return kind(model)


def _as_the_mixin(model: PreTrainedModel, method: str) -> bool:
    # Asks the instance, which PEFT's prompt learning gives a method of its own.
    return getattr(getattr(model, method), "__func__", None) is getattr(GenerationMixin, method)


def unseen_tokens(input_ids: torch.LongTensor, model_kwargs: dict[str, Any], config: GenerationConfig) -> int | None:
    """Return how many of ``input_ids`` a cache passed in by the user lacks; None where all are to be sent."""
    past = tokens_in(model_kwargs)
    if not past:
        return None
    mask = model_kwargs.get("attention_mask")
    covered = mask.shape[1] if mask is not None else getattr(config, "_mask_length", input_ids.shape[1])
    # A mask longer than the ids says that the ids are only what is new.
    return input_ids.shape[1] - past if covered == input_ids.shape[1] else None
