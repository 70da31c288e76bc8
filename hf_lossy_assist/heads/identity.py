"""Identities of models. A head stores those of its models, and compares them with the models at hand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from typing import Annotated, Any

from torch import Tensor, nn

from ..compat.models import innermost, is_sharded, origin_of
from ..errors import LossyValueError
from ..values import TEXT, Checked, Rule, Size, Text, is_number, known_fields
from .repository import HUB_ID

FINGERPRINT_ROWS = 8
FINGERPRINT_TOLERANCE = 0.02
"""Half precision and quantisation move the norm of a row by less than this; another model moves it by more."""

_NORMS = Rule(
    "numbers that are not negative", lambda x: isinstance(x, tuple | list) and all(is_number(n) and n >= 0 for n in x)
)


@dataclass(frozen=True)
class ModelIdentity(Checked):
    """A model's name, sizes and fingerprint. By these, a head recognises the models whose hidden states it reads.

    Parameters
    ----------
    name
        The id on the Hub, the name of a local folder, or else the name of the model's class.
    revision
        The commit on the Hub, or None.
    architecture
        The name of the model's class.
    hidden_size, vocab_size
        Width of the state that enters the LM head, and rows of that head.
    fingerprint
        L2 norms of 8 rows of the LM head, evenly spread over the vocabulary; empty if they can't be read.

    Examples
    --------
    >>> from hf_lossy_assist import pairs
    >>> identity = ModelIdentity.of(pairs.load("arithmetic").draft)
    >>> identity.name, identity.architecture, identity.hidden_size
    ('draft', 'LlamaForCausalLM', 128)
    >>> identity.differences(pairs.load("arithmetic").target)[0]
    'the hidden size is 256, not 128'
    """

    name: Text
    revision: Annotated[str | None, TEXT]
    architecture: Text
    hidden_size: Size
    vocab_size: Size
    fingerprint: Annotated[tuple[float, ...], _NORMS] = ()

    @classmethod
    def of(cls, model: nn.Module) -> ModelIdentity:
        """Return the identity of a model with an LM head, unwrapped if need be."""
        inner = innermost(model)
        kind, head = type(inner).__name__, getattr(inner, "get_output_embeddings", lambda: None)()
        if head is None:
            raise LossyValueError(f"`model` has to be a model with an LM head, but is a {kind}")
        config = inner.config.get_text_config(decoder=True)
        shape = (config.vocab_size, config.hidden_size)
        # Packed 4-bit weights are not a plain matrix. A head of ours that keeps none keeps the norms of what it was.
        weight, norms = getattr(head, "weight", None), getattr(head, "row_norms", ())
        if weight is not None and not is_sharded(inner) and weight.dim() == 2 and weight.is_floating_point():
            # Some models project the hidden state, or pad the vocabulary, on the way to the head.
            shape, norms = weight.shape, _fingerprint(head)
        elif norms:
            shape = (head.out_features, head.in_features)
        source, revision = origin_of(inner)
        is_id = re.fullmatch(HUB_ID, source) and not Path(source).is_dir()
        name = source if is_id else Path(source).name
        return cls(name or kind, revision, kind, hidden_size=shape[1], vocab_size=shape[0], fingerprint=norms)

    @property
    def is_on_hub(self) -> bool:
        return re.fullmatch(HUB_ID, self.name) is not None

    @classmethod
    def from_dict(cls, values: Any, where: str = "the identity") -> ModelIdentity:
        return cls(**known_fields(cls, values, where))

    def differences(self, model: nn.Module) -> list[str]:
        """Return the differences between ``model`` and this identity, in one sentence each.

        Names count only if both are ids on the Hub, and norms only if both could be read. dtype, device and
        quantisation do not matter.
        """
        other = ModelIdentity.of(model)
        found = []
        if self.name != other.name and self.is_on_hub and other.is_on_hub:
            found.append(f"the model is {other.name!r}, not {self.name!r}")
        if self.architecture not in {cls.__name__ for cls in type(innermost(model)).__mro__}:
            found.append(f"the architecture is {other.architecture}, not {self.architecture}")
        if self.hidden_size != other.hidden_size:
            found.append(f"the hidden size is {other.hidden_size}, not {self.hidden_size}")
        if self.vocab_size != other.vocab_size:
            found.append(f"the vocabulary has {other.vocab_size} tokens, not {self.vocab_size}")
        ours, theirs = self.fingerprint, other.fingerprint
        # As float32, large norms would overflow and be equal.
        near = (isclose(a, b, rel_tol=FINGERPRINT_TOLERANCE) for a, b in zip(ours, theirs, strict=False))
        if not found and ours and theirs and not (len(ours) == len(theirs) and all(near)):
            revisions = f": its revision is {other.revision}, not {self.revision}"
            known = self.revision and other.revision and self.revision != other.revision
            found.append("the weights of the LM head differ" + revisions * bool(known))
        return found


def differing_models(recorded: Mapping[str, Any], models: Mapping[str, nn.Module | None]) -> list[str]:
    """Return the differences between ``models`` and their recorded identities (or JSON), by role."""
    found = []
    for role, model in models.items():
        identity = recorded.get(role)
        if identity is None or model is None:
            found += [f"of the {role}, there {'was' if identity is None else 'is'} none"] * (identity is not model)
            continue
        own = identity if isinstance(identity, ModelIdentity) else ModelIdentity.from_dict(identity, f"`{role}`")
        found += [f"of the {role}, {difference}" for difference in own.differences(model)]
    return found


def _fingerprint(head: nn.Module) -> tuple[float, ...]:
    from accelerate.utils import align_module_device  # fetches offloaded weights

    with align_module_device(head):
        weight = head.weight
        # Sharded or quantised subclasses of Tensor may lack readable rows.
        if weight.is_meta or type(weight) not in (Tensor, nn.Parameter):
            return ()
        return row_norms(weight)


def row_norms(weight: Tensor) -> tuple[float, ...]:
    """Return the norms of some rows of a weight ``(N, K)``."""
    rows = [(2 * i + 1) * len(weight) // (2 * FINGERPRINT_ROWS) for i in range(FINGERPRINT_ROWS)]
    return tuple(float(f"{norm:.6g}") for norm in weight.detach()[rows].float().norm(dim=-1).tolist())
