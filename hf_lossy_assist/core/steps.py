"""Steps of a text: where they end, and the question by which the target scores them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import LossyValueError
from .texts import common_prefix

DIGITS = "0123456789"


@dataclass(frozen=True)
class StepDrafting:
    """A request that the draft write whole steps, which the target scores.

    A step ends with the text ``end``, or has ``longest`` tokens. The target reads ``question`` after it, and answers
    with a digit. ``rule`` is the name of the requesting rule.
    """

    end: str
    question: str
    longest: int
    rule: str

    def bind(self, tokenizer: Any, endings: frozenset[int]) -> BoundSteps:
        """Resolve the texts into token ids; a step also ends with one of the tokens ``endings``."""
        if tokenizer is None:
            raise LossyValueError(
                f"the rule {self.rule!r} reads texts, which needs a tokenizer; pass `tokenizer=` to generate()"
            )
        answered = [tokenizer.encode(self.question + digit, add_special_tokens=False) for digit in DIGITS]
        # A tokenizer may put the question's last space into the digit's token.
        asked = answered[0][: min(common_prefix(answered[0], other) for other in answered[1:])]
        digits = {tuple(ids[len(asked) :]) for ids in answered}
        if not asked or len(digits) < len(DIGITS) or any(len(digit) != 1 for digit in digits):
            raise LossyValueError(
                f"`question` of the rule {self.rule!r} has to be a text after which every digit is one token, but is "
                f"{self.question!r}; end it so that a digit can follow, as in 'Rating: '"
            )
        return BoundSteps(self, tokenizer, endings, tuple(asked), tuple(ids[-1] for ids in answered))


@dataclass(frozen=True, eq=False)
class BoundSteps:
    """A request for steps, in the tokens of a target."""

    request: StepDrafting
    tokenizer: Any
    endings: frozenset[int]  # tokens that end a step, besides the request's text
    question: tuple[int, ...]
    digits: tuple[int, ...]  # the tokens that answer it, from 0 to 9

    @property
    def longest(self) -> int:
        return self.request.longest

    def end_with(self, tokens: Sequence[int]) -> bool:
        """Tell whether the last of ``tokens`` ends a step, if those before it do not."""
        return (
            len(tokens) >= self.longest
            or tokens[-1] in self.endings
            or self.request.end in self.tokenizer.decode(tokens, clean_up_tokenization_spaces=False)
        )

    def asked(self, ids: Tensor) -> Tensor:
        """Return the texts ``ids`` ``(B, L)``, each followed by the question."""
        return torch.cat([ids, ids.new_tensor(self.question).expand(len(ids), -1)], dim=-1)

    def scores(self, logits: Tensor) -> Tensor:
        """Return ``(B,)`` the expected digit of the logits ``(B, V)`` after the question."""
        p = logits[:, list(self.digits)].float().softmax(-1)
        return p @ torch.arange(10.0, device=p.device)
