"""Verifier heads, which tell whether a token of the draft needs the target's check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .checks import check_probability, is_number, require
from .head import Head
from .head_config import HeadConfig

POSITIONS = {
    "previous": "the final hidden state that predicted the token",
    "token": "the final hidden state that has read the token",
}
"""The states of the draft that a verifier may read."""


@dataclass(frozen=True)
class VerifierRow:
    """What a verifier does at one threshold, measured on validation data.

    It commits tokens whose probability of being acceptable is above the ``threshold``: ``tpr`` is the share of the
    acceptable tokens that are committed, ``fpr`` the share of the others.
    """

    threshold: float
    tpr: float
    fpr: float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_probability(name, value)


@dataclass(frozen=True, kw_only=True)
class VerifierConfig(HeadConfig):
    """The configuration of a verifier head (SPRINTER).

    Parameters
    ----------
    position
        Which of the draft's states it reads: ``"previous"`` or ``"token"``.
    ratio
        λ: a token x is acceptable iff ``q(x) / p(x) <= ratio``, with q the draft and p the target; above 0. The
        theorems of the paper (:mod:`hf_lossy_assist.theory.sprinter_theory`) are about heads with λ = 1: a smaller one
        commits fewer tokens that the target likes less than the draft does, a larger one more.
    """

    threshold: float = 0.5
    position: str = "previous"
    ratio: float = 1.0

    kind: ClassVar[str] = "verifier"
    rule: ClassVar[str] = "sprinter"
    row: ClassVar[type] = VerifierRow

    def __post_init__(self) -> None:
        super().__post_init__()
        positions = [*POSITIONS]
        require(self.position in positions, "position", f"one of {positions}", self.position)
        require(is_number(self.ratio) and self.ratio > 0, "ratio", "a number above 0", self.ratio)

    @property
    def reads(self) -> str:
        return f"{POSITIONS[self.position]}, of the draft"

    @property
    def width(self) -> int:
        return self.draft.hidden_size


class VerifierHead(Head):
    """``P(acceptable)`` of a token that the draft has just sampled; committed unseen iff it is above the threshold.

    SPRINTER, section 3.

    Examples
    --------
    >>> import torch
    >>> from hf_lossy_assist.heads import ModelIdentity
    >>> identity = ModelIdentity("org/llama", None, "LlamaForCausalLM", hidden_size=2, vocab_size=1000)
    >>> config = VerifierConfig(target=identity, draft=identity, task="gsm8k", position="previous", ratio=1.2)
    >>> head = VerifierHead(config, weight=torch.tensor([1.0, -1.0]), bias=0.0)
    >>> head.probability(torch.tensor([[1.0, 0.0], [0.0, 5.0]])) > head.config.threshold
    tensor([ True, False])
    """

    config_class: ClassVar[type[HeadConfig]] = VerifierConfig
    config: VerifierConfig
