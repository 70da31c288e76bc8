"""The configuration of a DFlash head, from any of the three kinds of checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from transformers import PretrainedConfig, Qwen3Config

from ..errors import LossyUnsupportedError, LossyValueError, brief
from ..values import BOOL, COUNT, POSITIVE, bounded
from .state_config import LAYERS, StateHeadConfig, architecture, list_of, or_null

_LAYERS = "aux_hidden_state_layer_ids"
_OF_TRANSFORMERS = "MuseGlimmerAssistantModel"
_KINDS = ("DFlashDraftModel", "DFlash2DraftModel", _OF_TRANSFORMERS)


@dataclass(frozen=True, eq=False, kw_only=True)
class DFlashConfig(StateHeadConfig):
    """The shape and the conventions of a DFlash head; fields of its own have the names that checkpoints give them."""

    title = "a DFlash head"
    model_type = "dflash"
    rules = {  # noqa: RUF012
        "block_size": bounded(2, 1024, integer=True),
        "mask_token_id": COUNT,
        "target_layer_ids": list_of(int, "numbers of layers"),
        "is_causal": or_null(BOOL),
        "input_embedding_scale": or_null(POSITIVE),
        "output_multiplier": or_null(POSITIVE),
        "final_logit_softcapping": or_null(bounded(0)),
        "sliding_window_non_causal": or_null(BOOL),
        _LAYERS: LAYERS,
    }
    block_size: int  # positions of a block: the text's newest token, and drafted ones
    mask_token_id: int  # the token whose embedding stands in place of drafted ones
    # Whether a block's positions see only those before; None where those of layers with sliding windows do.
    is_causal: bool | None = None
    input_embedding_scale: float = 1.0
    output_multiplier: float = 1.0  # of the logits
    final_logit_softcapping: float | None = None

    @property
    def kinds(self) -> list[tuple[int | None, bool]]:
        """Each layer's sliding window, if it has one, and whether its positions see only those before."""
        found = []
        for kind in self.layer.layer_types:
            slides = kind == "sliding_attention"
            causal = slides if self.is_causal is None else self.is_causal
            found.append((self.layer.sliding_window if slides else None, causal))
        return found

    @staticmethod
    def describes(values: Mapping[str, Any]) -> bool:
        """Tell whether a ``config.json`` is that of a DFlash head, of any of the three kinds."""
        if "speculators_model_type" in values:
            return values["speculators_model_type"] in ("dflash", "dflash2")
        return architecture(values) in _KINDS

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> DFlashConfig:
        """Read the ``config.json`` of the package dflash, of speculators, or of transformers' one model."""
        values = values if isinstance(values, Mapping) else {}
        kind = values.get("speculators_model_type") or architecture(values)
        if not cls.describes(values):
            raise LossyValueError(
                f"{brief(kind)} is no DFlash head as the packages dflash, speculators or transformers write it; pass "
                "the folder or repository of such a head, or use the model as an ordinary `assistant_model`"
            )
        others = [name for name in ("sample_from_anchor", "shift_label") if values.get(name)]
        others += [f"`projector_type` {x!r}" for x in [values.get("projector_type", "dflash")] if x != "dflash"]
        if others := [*others, *([kind] if kind in ("DFlash2DraftModel", "dflash2") else [])]:
            raise LossyUnsupportedError(
                f"a DFlash head has to draft a block's tokens independently, at their own positions, but this one has "
                f"{others}; pass another head"
            )
        if "speculators_model_type" in values:
            cls.check_values(
                values, ("transformer_layer_config", "draft_vocab_size", "block_size", "mask_token_id", _LAYERS)
            )
            two_sided = False if values.get("sliding_window_non_causal") else None
            own = {"is_causal": two_sided} | cls._own(values)
            return cls.of_speculators(values, _LAYERS, **own)
        nested = values.get("dflash_config", {})
        values = {**values, **nested} if isinstance(nested, Mapping) else values
        cls.check_values(values, ("hidden_size", "block_size", "mask_token_id", "target_layer_ids"))
        if kind == _OF_TRANSFORMERS:
            values = {"is_causal": False, "use_sliding_window": True, **values}
        layer = cls.layer_config(Qwen3Config, {**values, "model_type": "qwen3"})
        # These number the layers' outputs: layer i's is what enters layer i + 1.
        read = tuple(i + 1 for i in values["target_layer_ids"])
        size = layer.vocab_size
        return cls(
            layer=layer, draft_vocab_size=size, target_hidden_size=layer.hidden_size, target_layers=read,
            **cls._own(values),
        )  # fmt: skip

    @classmethod
    def _own(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        names = {x.name for x in fields(cls)} & cls.rules.keys()
        return {name: value for name in names if (value := values.get(name)) is not None}

    @classmethod
    def layer_config(cls, kind: type[PretrainedConfig], values: Mapping[str, Any]) -> PretrainedConfig:
        layer = super().layer_config(kind, values)
        if kind is Qwen3Config:
            return layer
        return cls.layer_config(Qwen3Config, layer.to_dict() | {"model_type": "qwen3"})  # whose layers any head has

    def to_dict(self) -> dict[str, Any]:
        """Return a ``config.json`` as speculators writes it."""
        return super().to_dict() | {
            "architectures": ["DFlashDraftModel"],
            _LAYERS: list(self.target_layers),
            "sliding_window_non_causal": self.is_causal is False,
            **{x.name: getattr(self, x.name) for x in fields(self) if x.name in self.rules},
        }
