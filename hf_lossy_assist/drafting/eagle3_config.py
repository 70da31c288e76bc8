"""The configuration of an EAGLE-3 head, from any of the three kinds of checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import LlamaConfig

from ..errors import LossyUnsupportedError, LossyValueError, brief
from ..values import BOOL
from .state_config import LAYER_TYPES, LAYERS, StateHeadConfig, architecture, or_null

_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
_LAYERS = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True, eq=False)
class Eagle3Config(StateHeadConfig):
    """The shape and the conventions of an EAGLE-3 head."""

    title = "an EAGLE-3 head"
    model_type = "eagle3"
    rules = {**dict.fromkeys(_FLAGS, or_null(BOOL)), _LAYERS: LAYERS}  # noqa: RUF012
    norm_before_residual: bool = False  # whether the layer's residual is the normed state
    norm_before_fc: bool = False  # whether the states are normed before they are fused, all at once
    fc_norm: bool = False  # likewise, each by itself
    norm_output: bool = False  # whether the normed output replaces the fused states from the second drafted token on

    def __post_init__(self) -> None:
        kinds = getattr(self.layer, "layer_types", None) or ()
        if self.layer.model_type not in LAYER_TYPES or set(kinds) - {"full_attention"}:
            raise LossyUnsupportedError(
                f"an EAGLE-3 head has to have layers of {list(LAYER_TYPES)} with full attention, but this head has "
                f"{self.layer.model_type!r} with {sorted(set(kinds)) or 'full attention'}; pass another head"
            )
        if self.norm_before_fc and self.fc_norm:
            raise LossyValueError("an EAGLE-3 head has either `norm_before_fc` or `fc_norm`, but this head has both")

    @staticmethod
    def describes(values: Mapping[str, Any]) -> bool:
        """Tell whether a ``config.json`` is that of an EAGLE-3 head, of any of the three kinds."""
        if "speculators_model_type" in values:
            return values["speculators_model_type"] == "eagle3"
        kind = architecture(values)
        return kind == "LlamaForCausalLMEagle3" or (kind == "LlamaForCausalLM" and "draft_vocab_size" in values)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Eagle3Config:
        """Read the ``config.json`` of any of the three kinds of checkpoints."""
        values = values if isinstance(values, Mapping) else {}
        if not cls.describes(values):
            kind = values.get("speculators_model_type") or architecture(values)
            raise LossyValueError(
                f"{brief(kind)} is no EAGLE-3 head as SafeAILab's EAGLE, SpecForge or speculators write it; pass the "
                "folder or repository of such a head, or use the model as an ordinary `assistant_model`"
            )
        if "speculators_model_type" not in values:
            cls.check_values(values, ("hidden_size", "vocab_size"))
            return cls._of_eagle(values)
        cls.check_values(values, ("transformer_layer_config", "draft_vocab_size"))
        return cls.of_speculators(values, _LAYERS, **{name: bool(values.get(name, False)) for name in _FLAGS})

    @classmethod
    def _of_eagle(cls, values: Mapping[str, Any]) -> Eagle3Config:
        own = values.get("eagle_config") or {}
        outputs = own.get(_LAYERS)
        return cls(
            layer=cls.layer_config(LlamaConfig, {**values, "num_hidden_layers": 1}),
            draft_vocab_size=values.get("draft_vocab_size") or values["vocab_size"],
            target_hidden_size=values.get("target_hidden_size") or values["hidden_size"],
            # These number the layers' outputs: layer i's is what enters layer i + 1.
            target_layers=None if outputs is None else tuple(i + 1 for i in outputs),
            **{name: bool(own.get(name, values.get(name, False))) for name in _FLAGS},
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a ``config.json`` as speculators writes it."""
        return super().to_dict() | {
            "architectures": ["Eagle3DraftModel"],
            _LAYERS: None if self.target_layers is None else list(self.target_layers),
            **{name: getattr(self, name) for name in _FLAGS},
            "embed_requires_grad": False,
        }
