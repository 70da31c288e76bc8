"""What the configurations of heads on a target's states share, such as EAGLE-3's and DFlash's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from ..compat.models import versions_of
from ..errors import LossyUnsupportedError, LossyValueError, brief
from ..values import SIZE, Rule, bounded, or_none
from .vocabulary import MOST_PADDING

_OF_THE_HEAD = {
    "architectures", "draft_vocab_size", "target_hidden_size", "eagle_config", "dflash_config", "auto_map", "dtype",
    "torch_dtype",
}  # fmt: skip


LAYER_TYPES = ("llama", "qwen3")
"""Kinds of decoder layers that a head can have."""

or_null = partial(or_none, none="null")


def list_of(kind: type, items: str) -> Rule:
    return Rule(f"a list of {items}", lambda x: isinstance(x, list) and all(type(y) is kind for y in x))


LAYERS = or_null(list_of(int, "numbers of layers"))
_OBJECT = Rule("an object", lambda x: isinstance(x, Mapping))
_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("hidden_size", "intermediate_size", "vocab_size", "num_attention_heads"), SIZE),
    **dict.fromkeys(("num_key_value_heads", "head_dim", "draft_vocab_size", "target_hidden_size"), or_null(SIZE)),
    **dict.fromkeys(("eagle_config", "speculators_config", "rope_scaling", "verifier"), or_null(_OBJECT)),
    **dict.fromkeys(("transformer_layer_config", "dflash_config"), _OBJECT),
    "num_hidden_layers": bounded(1, 64, integer=True),
    "name_or_path": or_null(Rule("a string", lambda x: isinstance(x, str))),
    "architectures": or_null(list_of(str, "strings")),
}
"""What values of a ``config.json`` have to be, wherever they stand in it; transformers checks the other ones."""


@dataclass(frozen=True, eq=False)
class StateHeadConfig:
    """The shape of a head that reads a target's states, and the target that it is for."""

    title: ClassVar[str]  # what errors call the head, with an article
    model_type: ClassVar[str]  # speculators' name of the kind
    rules: ClassVar[Mapping[str, Rule]]  # what its own values have to be
    layer: PretrainedConfig  # its decoder layers': kind, sizes, rotary positions; `vocab_size` is the target's
    draft_vocab_size: int  # how many tokens it can draft
    target_hidden_size: int  # the width of the target's states
    # The states that it reads, numbered as in the target's `hidden_states`: i enters layer i, and the last leaves them
    # all, before the norm. None for the usual three, which depend on the target's depth.
    target_layers: tuple[int, ...] | None = None
    target_name: str | None = None  # the model that it was trained for, if the checkpoint names it
    target_architectures: tuple[str, ...] = ()

    def get_text_config(self, decoder: bool = True) -> PretrainedConfig:
        """Return the decoder layers' configuration, which holds a model's sizes."""
        return self.layer

    @property
    def layers_read(self) -> int:
        return 3 if self.target_layers is None else len(self.target_layers)

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
                f"`assistant_model` is {self.title}, which can't draft for a {type(target).__name__}, an "
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
                f"`assistant_model` is {self.title} trained for{trained}: it reads {'; it reads '.join(found)}. "
                "Pass a head that was trained for this target"
            )

    @classmethod
    def check_values(cls, values: Mapping[str, Any], needed: tuple[str, ...]) -> None:
        """Refuse missing values, and those of another type or size, before anything is made of them."""
        for name, value in values.items():
            if (rule := cls.rules.get(name) or _RULES.get(name)) is not None:
                rule.check(name, value, f" of {cls.title}'s configuration")
                if isinstance(value, Mapping):
                    cls.check_values(value, ())
        if missing := [name for name in needed if name not in values]:
            raise LossyValueError(f"the configuration of {cls.title} lacks {missing}; save or download it again")

    @classmethod
    def of_speculators(cls, values: Mapping[str, Any], layers: str, **own: Any) -> Self:
        """Read what every head in the format of speculators has; ``layers`` is where the states' numbers stand."""
        kind = values["transformer_layer_config"].get("model_type", "qwen3")
        if kind not in LAYER_TYPES:
            raise LossyUnsupportedError(
                f"{cls.title} has to have layers of {list(LAYER_TYPES)}, not {brief(kind)}; pass another head"
            )
        layer = cls.layer_config(type(AutoConfig.for_model(kind)), values["transformer_layer_config"])
        verifier = (values.get("speculators_config") or {}).get("verifier") or {}
        return cls(
            layer=layer,
            draft_vocab_size=values["draft_vocab_size"] or layer.vocab_size,
            target_hidden_size=values.get("target_hidden_size") or layer.hidden_size,
            target_layers=None if values.get(layers) is None else tuple(values[layers]),
            target_name=verifier.get("name_or_path"),
            target_architectures=tuple(verifier.get("architectures") or ()),
            **own,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a ``config.json`` as speculators writes it, without what one kind alone has."""
        proposal = {"proposal_type": "greedy", "speculative_tokens": 5, "verifier_accept_k": 1, "accept_tolerance": 0.0}
        layer = {name: value for name, value in self.layer.to_diff_dict().items() if not name.startswith("_")}
        width = self.target_hidden_size
        return {
            "speculators_model_type": self.model_type,
            "speculators_version": "0.9.0",
            "speculators_config": {
                "algorithm": self.model_type,
                "default_proposal_method": "greedy",
                "proposal_methods": [proposal],
                "verifier": {"name_or_path": self.target_name, "architectures": list(self.target_architectures)},
            },
            "transformer_layer_config": layer,
            "draft_vocab_size": self.draft_vocab_size,
            "target_hidden_size": None if width == self.layer.hidden_size else width,
            **{f"{name}_version": version for name, version in versions_of("transformers").items()},
        }

    @classmethod
    def layer_config(cls, kind: type[PretrainedConfig], values: Mapping[str, Any]) -> PretrainedConfig:
        """Return the configuration of the layers of a ``kind`` among ``values``."""
        others = _OF_THE_HEAD | cls.rules.keys()
        try:
            config = kind.from_dict({name: value for name, value in values.items() if name not in others})
            heads = config.num_attention_heads
            if heads % (config.num_key_value_heads or heads) or (config.head_dim or 2) % 2:
                raise ValueError(
                    f"`num_key_value_heads` {config.num_key_value_heads} has to divide `num_attention_heads` {heads}, "
                    f"and `head_dim` {config.head_dim} has to be even"
                )
        except Exception as error:  # of whatever kind: transformers checks by means of its own
            raise LossyValueError(f"the layer in {cls.title}'s configuration is refused: {error}") from error
        return config


def architecture(values: Mapping[str, Any]) -> Any:
    """Return the name of the class that a ``config.json`` is of."""
    named = values.get("architectures")
    return named[0] if isinstance(named, list) and named else "none"
