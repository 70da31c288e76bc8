"""AutoJudge's rule-based baseline: tokens of mathematics are important, all others are not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..acceptors import REGISTRY, Acceptor, register
from ..messages import Verification

_MATHS = re.compile(r"\d|^\s*[-+*/=<>%^()x×÷·−]+\s*$")


def maths_tokens(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the ids of tokens with digits, and of those made of operators, brackets or a lone x.

    Examples
    --------
    >>> from hf_lossy_assist import pairs
    >>> tokenizer = pairs.load("arithmetic").tokenizer
    >>> {tokenizer.convert_tokens_to_ids(x) for x in ("7", "+", "=")} <= maths_tokens(tokenizer)
    True
    """
    texts = {i: tokenizer.decode([i]) for i in range(len(tokenizer))}
    return frozenset(i for i, text in texts.items() if _MATHS.search(text)) | set(tokenizer.all_special_ids)


@dataclass(frozen=True)
class MathsTokens(Acceptor):
    """Keep x iff the target would choose it too, or neither its token nor the draft's is one of mathematics.

    Garipov et al. 2025 (AutoJudge), appendix K. A baseline for measurements; greedy.

    Parameters
    ----------
    important
        The ids of the tokens of mathematics.
    """

    important: frozenset[int] = field(default=frozenset())

    name: ClassVar[str] = "maths"
    paper: ClassVar[str] = "Garipov et al. 2025 (appendix K)"
    lossless_at: ClassVar[Mapping[str, Any]] = {}

    def is_lossless(self, do_sample: bool) -> bool:
        """Tell that it never is."""
        return False

    def keep(self, v: Verification) -> Tensor:
        """Return ``(B, n)`` where neither token is of mathematics, or both are the same."""
        important = torch.tensor(sorted(self.important), device=v.tokens.device)
        mismatch = torch.isin(v.tokens, important) | torch.isin(v.best[:, :-1], important)
        return v.lossless | (~mismatch & v.allowed)


@contextmanager
def registered() -> Iterator[None]:
    """Make ``lossy_mode="maths"`` available inside the block."""
    register(MathsTokens)
    try:
        yield
    finally:
        REGISTRY.pop(MathsTokens.name, None)
