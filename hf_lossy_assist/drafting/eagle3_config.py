"""The configuration of an EAGLE-3 head, from any of the three kinds of checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import AutoConfig, LlamaConfig, PretrainedConfig, PreTrainedModel

from ..compat import versions_of
from ..errors import LossyUnsupportedError, LossyValueError, brief
from ..values import SIZE, Rule, bounded
from .vocabulary import MOST_PADDING

LAYER_TYPES = ("llama", "qwen3")
"""Kinds of decoder layers that a head can have."""

_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
_OF_THE_HEAD = {
    *_FLAGS, "architectures", "draft_vocab_size", "target_hidden_size", "eagle_config", "auto_map", "dtype",
    "torch_dtype",
}  # fmt: skip
_LAYERS_READ = 3


def _or_null(rule: Rule) -> Rule:
    return Rule(f"{rule.expected} or null", lambda x: x is None or rule.holds(x))


def _list_of(kind: type, items: str) -> Rule:
    return _or_null(Rule(f"a list of {items}", lambda x: isinstance(x, list) and all(type(y) is kind for y in x)))


_OBJECT = Rule("an object", lambda x: isinstance(x, Mapping))
_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("hidden_size", "intermediate_size", "vocab_size", "num_attention_heads"), SIZE),
    **dict.fromkeys(("num_key_value_heads", "head_dim", "draft_vocab_size", "target_hidden_size"), _or_null(SIZE)),
    **dict.fromkeys(_FLAGS, _or_null(Rule("a bool", lambda x: isinstance(x, bool)))),
    **dict.fromkeys(("eagle_config", "speculators_config", "rope_scaling", "verifier"), _or_null(_OBJECT)),
    "transformer_layer_config": _OBJECT,
    "num_hidden_layers": bounded(1, 64, integer=True),
    "name_or_path": _or_null(Rule("a string", lambda x: isinstance(x, str))),
    "architectures": _list_of(str, "strings"),
    "eagle_aux_hidden_state_layer_ids": _list_of(int, "numbers of layers"),
}
"""What values of a ``config.json`` have to be, wherever they stand in it; transformers checks the other ones."""


@dataclass(frozen=True, eq=False)
class Eagle3Config:
    """The shape and the conventions of an EAGLE-3 head."""

    layer: PretrainedConfig  # its decoder layer's: kind, sizes, rotary positions; `vocab_size` is the target's
    draft_vocab_size: int  # how many tokens it can draft
    target_hidden_size: int  # the width of the target's states
    # The states that it reads, numbered as in the target's `hidden_states`: i enters layer i, and the last leaves them
    # all, before the norm. None for the usual three, which depend on the target's depth.
    target_layers: tuple[int, ...] | None = None
    norm_before_residual: bool = False  # whether the layer's residual is the normed state
    norm_before_fc: bool = False  # whether the states are normed before they are fused, all at once
    fc_norm: bool = False  # likewise, each by itself
    norm_output: bool = False  # whether the normed output replaces the fused states from the second drafted token on
    target_name: str | None = None  # the model that it was trained for, if the checkpoint names it
    target_architectures: tuple[str, ...] = ()

    def get_text_config(self, decoder: bool = True) -> PretrainedConfig:
        """Return the decoder layer's configuration, which holds a model's sizes."""
        return self.layer

    def __post_init__(self) -> None:
        kinds = getattr(self.layer, "layer_types", None) or ()
        if self.layer.model_type not in LAYER_TYPES or set(kinds) - {"full_attention"}:
            raise LossyUnsupportedError(
                f"an EAGLE-3 head has to have layers of {list(LAYER_TYPES)} with full attention, but this head has "
                f"{self.layer.model_type!r} with {sorted(set(kinds)) or 'full attention'}; pass another head"
            )
        if self.norm_before_fc and self.fc_norm:
            raise LossyValueError("an EAGLE-3 head has either `norm_before_fc` or `fc_norm`, but this head has both")

    @property
    def layers_read(self) -> int:
        return _LAYERS_READ if self.target_layers is None else len(self.target_layers)

    def layers_of(self, target: PreTrainedModel) -> tuple[int, ...]:
        """Return which of a target's ``hidden_states`` it reads."""
        if self.target_layers is not None:
            return self.target_layers
        depth = target.config.get_text_config(decoder=True).num_hidden_layers
        return 2, depth // 2, depth - 3

    def check(self, target: PreTrainedModel) -> None:
        """Refuse a target that the head does not fit, with everything that differs."""
        if target.config.is_encoder_decoder:
            raise LossyUnsupportedError(
                f"`assistant_model` is an EAGLE-3 head, which can't draft for a {type(target).__name__}, an "
                "encoder-decoder model; pass a draft model"
            )
        config = target.config.get_text_config(decoder=True)
        layers, found = self.layers_of(target), []
        if config.hidden_size != self.target_hidden_size:
            found.append(f"states of width {self.target_hidden_size}, and the target's have {config.hidden_size}")
        if len(set(layers)) < len(layers) or min(layers) < 0 or max(layers) > config.num_hidden_layers:
            found.append(f"the states {list(layers)}, and the target has {config.num_hidden_layers} layers")
        if abs(config.vocab_size - self.layer.vocab_size) > MOST_PADDING:
            found.append(f"{self.layer.vocab_size} tokens, and the target has {config.vocab_size}")
        if found:
            trained = f" {self.target_name!r}" if self.target_name else " another model"
            raise LossyValueError(
                f"`assistant_model` is an EAGLE-3 head trained for{trained}: it reads {'; it reads '.join(found)}. "
                "Pass a head that was trained for this target"
            )

    @staticmethod
    def describes(values: Mapping[str, Any]) -> bool:
        """Tell whether a ``config.json`` is that of an EAGLE-3 head, of any of the three kinds."""
        if "speculators_model_type" in values:
            return values["speculators_model_type"] == "eagle3"
        kind = _architecture(values)
        return kind == "LlamaForCausalLMEagle3" or (kind == "LlamaForCausalLM" and "draft_vocab_size" in values)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Eagle3Config:
        """Read the ``config.json`` of any of the three kinds of checkpoints."""
        values = values if isinstance(values, Mapping) else {}
        if not cls.describes(values):
            kind = values.get("speculators_model_type") or _architecture(values)
            raise LossyValueError(
                f"{brief(kind)} is no EAGLE-3 head as SafeAILab's EAGLE, SpecForge or speculators write it; pass the "
                "folder or repository of such a head, or use the model as an ordinary `assistant_model`"
            )
        speculators = "speculators_model_type" in values
        needed = ("transformer_layer_config", "draft_vocab_size") if speculators else ("hidden_size", "vocab_size")
        if missing := [name for name in needed if name not in values]:
            raise LossyValueError(f"the configuration of an EAGLE-3 head lacks {missing}; save or download it again")
        _check_values(values)
        return cls._of_speculators(values) if speculators else cls._of_eagle(values)

    @classmethod
    def _of_eagle(cls, values: Mapping[str, Any]) -> Eagle3Config:
        own = values.get("eagle_config") or {}
        outputs = own.get("eagle_aux_hidden_state_layer_ids")
        return cls(
            layer=_layer_config(LlamaConfig, {**values, "num_hidden_layers": 1}),
            draft_vocab_size=values.get("draft_vocab_size") or values["vocab_size"],
            target_hidden_size=values.get("target_hidden_size") or values["hidden_size"],
            # These number the layers' outputs: layer i's is what enters layer i + 1.
            target_layers=None if outputs is None else tuple(i + 1 for i in outputs),
            **{name: bool(own.get(name, values.get(name, False))) for name in _FLAGS},
        )

    @classmethod
    def _of_speculators(cls, values: Mapping[str, Any]) -> Eagle3Config:
        layer = dict(values["transformer_layer_config"])
        kind = layer.get("model_type", "qwen3")
        if kind not in LAYER_TYPES:
            raise LossyUnsupportedError(
                f"an EAGLE-3 head has to have layers of {list(LAYER_TYPES)}, not {kind!r}; pass another head"
            )
        config = _layer_config(type(AutoConfig.for_model(kind)), layer)
        inputs = values.get("eagle_aux_hidden_state_layer_ids")
        verifier = (values.get("speculators_config") or {}).get("verifier") or {}
        return cls(
            layer=config,
            draft_vocab_size=values["draft_vocab_size"] or config.vocab_size,
            target_hidden_size=values.get("target_hidden_size") or config.hidden_size,
            target_layers=None if inputs is None else tuple(inputs),
            **{name: bool(values.get(name, False)) for name in _FLAGS},
            target_name=verifier.get("name_or_path"),
            target_architectures=tuple(verifier.get("architectures") or ()),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a ``config.json`` as speculators writes it."""
        proposal = {"proposal_type": "greedy", "speculative_tokens": 5, "verifier_accept_k": 1, "accept_tolerance": 0.0}
        layer = {name: value for name, value in self.layer.to_diff_dict().items() if not name.startswith("_")}
        width = self.target_hidden_size
        return {
            "architectures": ["Eagle3DraftModel"],
            "speculators_model_type": "eagle3",
            "speculators_version": "0.9.0",
            "speculators_config": {
                "algorithm": "eagle3",
                "default_proposal_method": "greedy",
                "proposal_methods": [proposal],
                "verifier": {"name_or_path": self.target_name, "architectures": list(self.target_architectures)},
            },
            "transformer_layer_config": layer,
            "draft_vocab_size": self.draft_vocab_size,
            "target_hidden_size": None if width == self.layer.hidden_size else width,
            "eagle_aux_hidden_state_layer_ids": None if self.target_layers is None else list(self.target_layers),
            **{name: getattr(self, name) for name in _FLAGS},
            "embed_requires_grad": False,
            **{f"{name}_version": version for name, version in versions_of("transformers").items()},
        }


def _architecture(values: Mapping[str, Any]) -> Any:
    named = values.get("architectures")
    return named[0] if isinstance(named, list) and named else "none"


def _check_values(values: Mapping[str, Any]) -> None:
    """Refuse values of another type or size, before anything is made of them."""
    for name, value in values.items():
        if name in _RULES:
            _RULES[name].check(name, value, " of an EAGLE-3 head's configuration")
        if name in _RULES and isinstance(value, Mapping):
            _check_values(value)


def _layer_config(kind: type[PretrainedConfig], values: Mapping[str, Any]) -> PretrainedConfig:
    try:
        config = kind.from_dict({name: value for name, value in values.items() if name not in _OF_THE_HEAD})
        heads = config.num_attention_heads
        if heads % (config.num_key_value_heads or heads) or (config.head_dim or 2) % 2:
            raise ValueError(
                f"`num_key_value_heads` {config.num_key_value_heads} has to divide `num_attention_heads` {heads}, and "
                f"`head_dim` {config.head_dim} has to be even"
            )
    except Exception as error:  # of whatever kind: transformers checks by means of its own
        raise LossyValueError(f"the layer in an EAGLE-3 head's configuration is refused: {error}") from error
    return config
