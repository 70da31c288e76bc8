"""Texts of different lengths as lists of tokens, and the rectangles that they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hf_lossy_assist.core.texts import Texts
from tests.tiny_models import VOCAB

PAD = 0


def rectangle(texts: Sequence[list[int]]) -> Tensor:
    """Return ``(B, W)`` texts that end in the last column."""
    width = max(map(len, texts))
    return torch.tensor([[PAD] * (width - len(text)) + text for text in texts])


@dataclass
class Round:
    """What a round adds to texts: ``tokens[i][: counts[i]]``, or less than nothing; and which texts end."""

    tokens: list[list[int]]
    counts: list[int]
    ended: list[bool]

    def after(self, texts: Sequence[list[int]]) -> list[list[int]]:
        return [
            (text + new)[: len(text) + count] for text, new, count in zip(texts, self.tokens, self.counts, strict=True)
        ]

    def stays(self) -> list[int]:
        return [i for i, ended in enumerate(self.ended) if not ended]


def random_tokens(count: int, generator: torch.Generator) -> list[int]:
    return torch.randint(3, VOCAB, (count,), generator=generator).tolist()


def between(low: int, high: int, generator: torch.Generator) -> int:
    """Return one of ``low … high``."""
    return int(torch.randint(low, high + 1, (1,), generator=generator))


def random_round(rows: int, drafted: int, generator: torch.Generator, ends: float = 0.1, least: int = 1) -> Round:
    """Return a round of ``drafted`` tokens and one more, of which rows keep at least ``least``."""
    return Round(
        tokens=[random_tokens(drafted + 1, generator) for _ in range(rows)],
        counts=[between(least, drafted + 1, generator) for _ in range(rows)],
        ended=[float(torch.rand(1, generator=generator)) < ends for _ in range(rows)],
    )


def longer(texts: Texts, counts: Sequence[int]) -> list[int]:
    """Return the lengths of texts after a round that adds ``counts`` tokens."""
    return [length + count for length, count in zip(texts.lengths, counts, strict=True)]
