"""The identity of a model that a head was trained for, to be compared with the model at hand."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..compat import is_offloaded, is_sharded, origin_of, unwrap
from ..errors import LossyValueError
from .checks import check_sequence, check_size, check_text, is_number, known_fields, require
from .hub import HUB_ID

FINGERPRINT_ROWS = 8
FINGERPRINT_TOLERANCE = 0.02
"""Half precision and quantisation move the norm of a row by less than this; another model moves it by more."""


@dataclass(frozen=True)
class ModelIdentity:
    """The properties by which a head recognises a model whose hidden states it reads.

    Parameters
    ----------
    name
        The id on the Hub; of a model from a local folder the folder's name alone; of any other its class's name.
    revision
        The commit that it was loaded from, if it came from the Hub.
    architecture
        The name of its class.
    hidden_size, vocab_size
        Width of the state that enters the LM head, and rows of that head.
    fingerprint
        L2 norms of 8 rows of the LM head, evenly spread over the vocabulary; empty where they can't be read.

    Examples
    --------
    >>> from hf_lossy_assist import pairs
    >>> identity = ModelIdentity.of(pairs.load("arithmetic").draft)
    >>> identity.name, identity.architecture, identity.hidden_size
    ('draft', 'LlamaForCausalLM', 128)
    >>> identity.differences(pairs.load("arithmetic").target)[0]
    'the hidden size is 256, not 128'
    """

    name: str
    revision: str | None
    architecture: str
    hidden_size: int
    vocab_size: int
    fingerprint: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_text("name", self.name)
        check_text("architecture", self.architecture)
        require(self.revision is None or isinstance(self.revision, str), "revision", "a string or None", self.revision)
        check_size("hidden_size", self.hidden_size)
        check_size("vocab_size", self.vocab_size)
        norms = all(is_number(norm) and norm >= 0 for norm in self.fingerprint)
        require(norms, "fingerprint", "numbers that are not negative", self.fingerprint)

    @classmethod
    def of(cls, model: nn.Module) -> ModelIdentity:
        """Return the identity of an EAGLE-3 head, or of a transformers model, also inside its wrappers."""
        inner = _inside(model)
        head = inner.get_output_embeddings()
        if head is None:
            raise LossyValueError(f"`model` has to have an LM head, but {type(inner).__name__} has none")
        config = inner.config.get_text_config(decoder=True)
        vocab_size, hidden_size = config.vocab_size, config.hidden_size
        whole = not is_sharded(inner)
        if whole and _is_plain(head.weight):
            # Some models project the hidden state, or pad the vocabulary, on the way to the head.
            vocab_size, hidden_size = head.weight.shape
        source, revision = origin_of(inner)
        return cls(
            name=_name(source) or type(inner).__name__,
            revision=revision,
            architecture=type(inner).__name__,
            hidden_size=hidden_size,
            vocab_size=vocab_size,
            fingerprint=_fingerprint(head) if whole else (),
        )

    @property
    def is_on_hub(self) -> bool:
        """Whether the name is an id on the Hub."""
        return re.fullmatch(HUB_ID, self.name) is not None

    @classmethod
    def from_dict(cls, values: Any, where: str = "the identity") -> ModelIdentity:
        """Return the identity in what was read from JSON, as ``where`` says."""
        known = known_fields(cls, values, where)
        norms = known.get("fingerprint", ())
        check_sequence("fingerprint", norms)
        return cls(**{**known, "fingerprint": tuple(norms)})

    def differences(self, model: nn.Module) -> list[str]:
        """Return what distinguishes ``model`` from the one remembered, one sentence each; nothing if it is the same.

        Names count only where both are ids on the Hub, norms only where both could be read. dtype, device and
        quantisation don't matter.
        """
        other = ModelIdentity.of(model)
        found = []
        if self.name != other.name and self.is_on_hub and other.is_on_hub:
            found.append(f"the model is {other.name!r}, not {self.name!r}")
        if self.architecture not in {cls.__name__ for cls in type(_inside(model)).__mro__}:
            found.append(f"the architecture is {other.architecture}, not {self.architecture}")
        if self.hidden_size != other.hidden_size:
            found.append(f"the hidden size is {other.hidden_size}, not {self.hidden_size}")
        if self.vocab_size != other.vocab_size:
            found.append(f"the vocabulary has {other.vocab_size} tokens, not {self.vocab_size}")
        if not found and not _same_norms(self.fingerprint, other.fingerprint):
            found.append("the weights of the LM head are other ones")
        return found


def _inside(model: nn.Module) -> nn.Module:
    from ..drafting.eagle3 import Eagle3  # which needs this package

    return model if isinstance(model, Eagle3) else unwrap(model)


def _name(path: str) -> str:
    if re.fullmatch(HUB_ID, path) and not Path(path).is_dir():
        return path
    return Path(path).name


def _is_plain(weight: Tensor) -> bool:
    # Packed 4-bit weights are neither.
    return weight.dim() == 2 and weight.is_floating_point()


def _fingerprint(head: nn.Module) -> tuple[float, ...]:
    with _at_hand(head):
        weight = head.weight
        # Subclasses of Tensor, sharded or quantised, need not have rows to look at.
        if not _is_plain(weight) or weight.is_meta or type(weight) not in (Tensor, nn.Parameter):
            return ()
        rows = [(2 * i + 1) * len(weight) // (2 * FINGERPRINT_ROWS) for i in range(FINGERPRINT_ROWS)]
        norms = weight.detach()[rows].float().norm(dim=-1)
    return tuple(float(f"{norm:.6g}") for norm in norms.tolist())


def _at_hand(head: nn.Module) -> Any:
    # accelerate keeps offloaded weights elsewhere, and brings them only for a forward.
    if not is_offloaded(head):
        return nullcontext()
    from accelerate.utils import align_module_device

    return align_module_device(head)


def _same_norms(ours: tuple[float, ...], theirs: tuple[float, ...]) -> bool:
    if not ours or not theirs:
        return True
    # Not in tensors: a norm that is infinite in float32 would be as near to any other.
    same = (abs(a - b) <= FINGERPRINT_TOLERANCE * max(a, b) for a, b in zip(ours, theirs, strict=False))
    return len(ours) == len(theirs) and all(same)
