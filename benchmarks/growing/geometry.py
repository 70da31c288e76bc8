"""Sizes of a Llama: the presets that ``--grow`` knows, and how they are written down."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from transformers import PretrainedConfig

from hf_lossy_assist import LossyValueError


@dataclass(frozen=True)
class Geometry:
    """The sizes of a Llama; None stands for the size that a model already has.

    Attributes
    ----------
    hidden, layers
        Width of the residual stream, and number of layers.
    heads, kv_heads, head_dim
        Query heads, key and value heads, and the width of each. Where ``hidden`` or ``heads`` is given, ``head_dim`` is
        by default the largest multiple of the model's in ``hidden / heads``.
    intermediate
        Neurons of each feed-forward block.
    vocab
        Rows of the embedding and of the LM head.

    Examples
    --------
    >>> Geometry(layers=24)
    Geometry(hidden=None, layers=24, heads=None, kv_heads=None, head_dim=None, intermediate=None, vocab=None)
    """

    hidden: int | None = None
    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    intermediate: int | None = None
    vocab: int | None = None

    @classmethod
    def of(cls, config: PretrainedConfig) -> Geometry:
        """Return the sizes of a Llama's configuration."""
        sizes = {name: getattr(config, field, None) for name, field in FIELDS.items()}
        return cls(**sizes | {"head_dim": sizes["head_dim"] or sizes["hidden"] // sizes["heads"]})

    def over(self, smaller: Geometry) -> Geometry:
        """Return these sizes, taking what is left open from ``smaller``, a whole geometry.

        Raises
        ------
        LossyValueError
            When a size is smaller than there, or when sizes do not go together.
        """
        given = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        if "head_dim" not in given and given.keys() & {"hidden", "heads"}:
            width = given.get("hidden", smaller.hidden) // given.get("heads", smaller.heads)
            given["head_dim"] = max(1, width // smaller.head_dim) * smaller.head_dim
        merged = dataclasses.replace(smaller, **given)
        for name, value in dataclasses.asdict(merged).items():
            if value < getattr(smaller, name):
                raise LossyValueError(
                    f"`{name}` of a grown model has to be >= {getattr(smaller, name)}, which the model has, but is "
                    f"{value}"
                )
        for whole, part in (("hidden", "heads"), ("heads", "kv_heads")):
            if getattr(merged, whole) % getattr(merged, part):
                raise LossyValueError(
                    f"`{part}` of a grown model has to divide its `{whole}` {getattr(merged, whole)}, but is "
                    f"{getattr(merged, part)}"
                )
        if merged.head_dim % smaller.head_dim:
            raise LossyValueError(
                f"`head_dim` of a grown model has to be a multiple of {smaller.head_dim}, but is {merged.head_dim}"
            )
        return merged

    def config_fields(self) -> dict[str, int]:
        """Return the sizes under the names that a Llama's configuration has for them."""
        return {field: getattr(self, name) for name, field in FIELDS.items()}


FIELDS: Mapping[str, str] = {
    "hidden": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads", "head_dim": "head_dim", "intermediate": "intermediate_size",
    "vocab": "vocab_size",
}  # fmt: skip
"""The names of a Llama's configuration."""
PRESETS: Mapping[str, Geometry] = {
    "llama-1b": Geometry(2048, 16, 32, 8, 64, 8192, 128256),
    "llama-3b": Geometry(3072, 28, 24, 8, 128, 8192, 128256),
    "llama-8b": Geometry(4096, 32, 32, 8, 128, 14336, 128256),
    "llama-70b": Geometry(8192, 80, 64, 8, 128, 28672, 128256),
}
"""Llama 3.2 1B and 3B, Llama 3.1 8B and 70B."""


def parse_geometry(text: str, option: str = "--grow") -> Geometry:
    """Read a preset, sizes, or a preset with some sizes changed.

    Raises
    ------
    LossyValueError
        When there is no such preset or size, or a size is not a whole number above 0.

    Examples
    --------
    >>> parse_geometry("llama-8b,layers=4").layers
    4
    >>> parse_geometry("hidden=768,heads=12").hidden
    768
    """
    first, *rest = (part.strip() for part in text.split(","))
    if "=" in first:
        base, rest = Geometry(), [first, *rest]
    elif first in PRESETS:
        base = PRESETS[first]
    else:
        raise LossyValueError(
            f"`{option}` has to be one of {list(PRESETS)}, or sizes like 'layers=12,hidden=768', but is {text!r}"
        )
    sizes = {}
    for part in rest:
        name, _, value = part.partition("=")
        if name not in FIELDS or not value.isascii() or not value.isdigit() or int(value) == 0:
            raise LossyValueError(
                f"`{option}` sizes have to be NAME=N with N > 0 and NAME one of {list(FIELDS)}, but one is {part!r}"
            )
        sizes[name] = int(value)
    return dataclasses.replace(base, **sizes)
