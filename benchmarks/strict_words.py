"""``python -m benchmarks.strict_words COMMAND …``: ``lossy-assist`` with a rule that leaves numbers to the target.

The rule is the one that ``rule_curves choose`` finds among those without training.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from transformers import AutoTokenizer

from benchmarks.rule_orders import DIGITS, OPERATORS
from hf_lossy_assist.acceptors import register, setting
from hf_lossy_assist.acceptors.fsd import Fsd
from hf_lossy_assist.cli import app as app
from hf_lossy_assist.cli import main
from hf_lossy_assist.core.messages import Verification
from hf_lossy_assist.pairs.pair import BUNDLED
from hf_lossy_assist.pairs.qwen_coder import folders


@dataclass(frozen=True)
class StrictWords(Fsd):
    """Keep x iff the lossless rule does, or ``D(p ‖ q) <= T`` and neither x nor the target's best token has a sign.

    Signs are digits and operators. Correction: lossless.

    Parameters
    ----------
    pair
        The pair whose tokenizer says what a token is made of.
    """

    pair: str = setting("qwen-coder", choices=("qwen-coder", "arithmetic"))

    name = "strict_words"
    paper = "none"

    def keep_published(self, v: Verification) -> Tensor:
        signs = signs_of(self.pair).to(v.tokens.device)
        strict = signs[v.tokens] | signs[v.logits[:, :-1].argmax(-1)]
        return (v.lossless & v.allowed) | (super().keep_published(v) & ~strict)


@cache
def signs_of(pair: str) -> Tensor:
    """Return ``(V,)`` which tokens of a pair have a digit or an operator; rows without a token have none."""
    tokenizer = AutoTokenizer.from_pretrained(folders()[0] if pair == "qwen-coder" else BUNDLED / "target")
    signs = torch.zeros(1 << len(tokenizer).bit_length(), dtype=torch.bool)
    signs[: len(tokenizer)] = torch.tensor([has_signs(tokenizer.decode([i])) for i in range(len(tokenizer))])
    return signs


def has_signs(word: str) -> bool:
    """Tell whether a word has a digit or an operator.

    Examples
    --------
    >>> has_signs(" 42"), has_signs(" apples"), has_signs("**")
    (True, False, True)
    """
    return bool((DIGITS | OPERATORS) & {*word})


if __name__ == "__main__":
    register(StrictWords)
    main()
