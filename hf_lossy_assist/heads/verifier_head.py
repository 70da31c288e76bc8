"""Verifier heads, which tell whether a drafted token needs the target's check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from ..values import POSITIVE, Checked, Probability, Rule
from .head import Head
from .head_config import HeadConfig

POSITIONS = ("previous", "token")
"""The states of the draft that a verifier may read."""

_POSITION = Rule(f"one of {[*POSITIONS]}", POSITIONS.__contains__)


@dataclass(frozen=True)
class VerifierRow(Checked):
    """The effect of a verifier at one threshold, measured on prompts that it was not fitted to.

    It commits tokens with a probability of being acceptable above ``threshold``; ``tpr`` and ``fpr`` are the committed
    shares of the acceptable tokens and of the others.
    """

    threshold: Probability
    tpr: Probability
    fpr: Probability


@dataclass(frozen=True, kw_only=True)
class VerifierConfig(HeadConfig):
    """The configuration of a verifier head (SPRINTER).

    Parameters
    ----------
    position
        Which of the draft's states it reads: ``"previous"`` or ``"token"``.
    ratio
        λ > 0: a token x is acceptable iff ``q(x) / p(x) <= ratio``, with q the draft and p the target. The paper's
        theorems (:mod:`hf_lossy_assist.theory`) assume λ = 1; a smaller λ commits fewer tokens to which the target
        gives less probability than the draft, a larger one more.
    """

    threshold: Probability = 0.5
    position: Annotated[str, _POSITION] = "previous"
    ratio: Annotated[float, POSITIVE] = 1.0

    kind: ClassVar[str] = "verifier"
    rule: ClassVar[str] = "sprinter"
    row: ClassVar[type] = VerifierRow

    @property
    def columns(self) -> list[str]:
        return [f"draft_{self.position}"]


class VerifierHead(Head):
    """``P(acceptable)`` of a token that the draft has just sampled; committed unverified iff it is above the threshold.

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
