"""Baselines for a judge: lists that say by tokens alone, without their context, which mismatches matter."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from hf_lossy_assist.acceptors import REGISTRY, Acceptor, register
from hf_lossy_assist.core.messages import Verification

_MATHS = re.compile(r"\d|^\s*[-+*/=<>%^()x×÷·−]+\s*$")
_PYTHON = re.compile(r"^[\s\d\W]+$")


def maths_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return the ids of tokens with digits, and of those made of operators, brackets or a lone x.

    Examples
    --------
    >>> from hf_lossy_assist import pairs
    >>> tokenizer = pairs.load("arithmetic").tokenizer
    >>> {tokenizer.convert_tokens_to_ids(x) for x in ("7", "+", "=")} <= {*maths_tokens(tokenizer)}
    True
    """
    return _matching(tokenizer, lambda text: _MATHS.search(text) is not None)


def python_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return the ids of Python's keywords and functions, and of tokens without letters: names and comments are free."""

    def matters(text: str) -> bool:
        word = text.strip()
        return keyword.iskeyword(word) or hasattr(builtins, word) or _PYTHON.search(text) is not None

    return _matching(tokenizer, matters)


def _matching(tokenizer: PreTrainedTokenizerBase, matters: Any) -> tuple[int, ...]:
    texts = {i: tokenizer.decode([i]) for i in range(len(tokenizer))}
    return tuple(sorted({i for i, text in texts.items() if matters(text)} | set(tokenizer.all_special_ids)))


@dataclass(frozen=True, eq=False)
class MismatchRates:
    """How often mismatches of each token, and of each pair of tokens, mattered in mined data.

    Counts are smoothed by one mismatch that mattered and one that did not, so an unseen token has 0.5.

    Attributes
    ----------
    tokens
        ``(V,)``, for a token as the target's or the draft's.
    pairs
        For seen pairs of the target's and the draft's token.
    """

    tokens: np.ndarray
    pairs: Mapping[tuple[int, int], float]

    @classmethod
    def of(cls, target: np.ndarray, draft: np.ndarray, important: np.ndarray, size: int) -> MismatchRates:
        """Count mismatches, given as the two tokens and whether they mattered ``(n,)``, for ``size`` tokens."""
        ends = np.concatenate([target, draft])
        total = np.bincount(ends, minlength=size)
        mattered = np.bincount(ends, weights=np.tile(important, 2), minlength=size)
        found, which = np.unique(np.stack([target, draft], 1), axis=0, return_inverse=True)
        rates = (np.bincount(which, weights=important) + 1) / (np.bincount(which) + 2)
        pairs = {(int(a), int(b)): float(rate) for (a, b), rate in zip(found, rates, strict=True)}
        return cls((mattered + 1) / (total + 2), pairs)

    @classmethod
    def mined(cls, folder: str | Path, size: int) -> MismatchRates:
        """Count the mismatches that ``lossy-assist mine`` found."""
        from benchmarks.mined_labels import labels_of_mismatches

        mined = labels_of_mismatches("--labels", Path(folder))
        table = mined.tokens.select_columns(["target_token", "draft_token", "important"]).with_format("numpy")[:]
        return cls.of(table["target_token"], table["draft_token"], table["important"].astype(float), size)

    def important(self, cut: float) -> tuple[int, ...]:
        """Return the tokens whose mismatches mattered more often than ``cut``."""
        return tuple(np.flatnonzero(self.tokens > cut).tolist())

    def free_pairs(self, cut: float) -> tuple[tuple[int, int], ...]:
        """Return the pairs whose mismatches mattered at most as often as ``cut``."""
        return tuple(sorted(pair for pair, rate in self.pairs.items() if rate <= cut))


class _Listed(Acceptor):
    lossless_at: ClassVar[Mapping[str, Any]] = {}
    paper: ClassVar[str] = "Garipov et al. 2025 (appendix K)"

    def is_lossless(self, do_sample: bool) -> bool:
        """Tell that it never is."""
        return False


@dataclass(frozen=True)
class ListedTokens(_Listed):
    """Keep x iff the target would choose it too, or neither its token nor the draft's is in a list.

    Garipov et al. 2025 (AutoJudge), appendix K, with the tokens of mathematics. A baseline for measurements; greedy.

    Parameters
    ----------
    important
        The ids of the tokens that matter.
    """

    important: tuple[int, ...] = field(default=())

    name: ClassVar[str] = "listed"

    def keep(self, v: Verification) -> Tensor:
        """Return ``(B, n)`` where neither token is listed, or both are the same."""
        important = torch.tensor(self.important, device=v.tokens.device)
        mismatch = torch.isin(v.tokens, important) | torch.isin(v.best[:, :-1], important)
        return v.lossless | (~mismatch & v.allowed)


@dataclass(frozen=True)
class ListedPairs(_Listed):
    """Keep x iff the target would choose it too, or its token and the draft's are a pair in a list.

    A baseline for measurements; greedy.

    Parameters
    ----------
    free
        Pairs of the target's token and the draft's.
    """

    free: tuple[tuple[int, int], ...] = field(default=())

    name: ClassVar[str] = "listed_pairs"

    def keep(self, v: Verification) -> Tensor:
        """Return ``(B, n)`` where the pair of tokens is listed, or both are the same."""
        size = v.logits.shape[-1]
        free = torch.tensor([a * size + b for a, b in self.free], dtype=torch.long, device=v.tokens.device)
        return v.lossless | (torch.isin(v.best[:, :-1] * size + v.tokens, free) & v.allowed)


@contextmanager
def registered() -> Iterator[None]:
    """Make the rules of this module available by name inside the block."""
    rules = (ListedTokens, ListedPairs)
    for rule in rules:
        register(rule)
    try:
        yield
    finally:
        for rule in rules:
            REGISTRY.pop(rule.name, None)
