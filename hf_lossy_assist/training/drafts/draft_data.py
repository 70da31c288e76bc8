"""Data for training a draft: texts with the target's states, some of them held out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from ...errors import LossyValueError
from ...tasks.task_data import share
from .target_states import TargetStates, cut
from .texts import Text

_MULTIPLE = 32

Item = dict[str, Tensor]
"""A text: ``ids`` ``(L,)``, ``answers`` ``(L,)`` (True in the answer), ``states`` ``(L, k·d)`` that the draft reads,
and ``last`` ``(L, d)``, the input of the target's LM head."""


class DraftData(Dataset):
    """Batches of texts of similar length, at most ``batch_tokens`` tokens each, with the target's states."""

    def __init__(self, texts: Sequence[Text], states: TargetStates, batch_tokens: int) -> None:
        self.texts, self.states = texts, states
        self.cuts = cut([len(text.ids) for text in texts], batch_tokens)

    def __len__(self) -> int:
        return len(self.cuts)

    def __getitem__(self, index: int) -> list[Item]:
        return items([self.texts[i] for i in self.cuts[index]], self.states)

    def frequent(self, n: int, vocab_size: int) -> Tensor:
        """Return the ``n`` most frequent tokens of the answers; in a tie, those with the lower ids."""
        counts = torch.zeros(vocab_size, dtype=torch.long)
        for text in self.texts:
            counts += torch.bincount(torch.tensor(text.ids[text.answer :]), minlength=vocab_size)
        return counts.sort(descending=True, stable=True).indices[:n]

    def some_states(self, n: int = 96) -> Tensor:
        """Return the states ``(N, k·d)`` at the answers of the first ``n`` texts."""
        return torch.cat([item["states"][item["answers"]] for item in items(self.texts[:n], self.states)])


def split(texts: Sequence[Text], held_out_share: float = 0.05) -> tuple[list[Text], list[Text]]:
    """Split texts by prompt into those to train on and those held out, of at least one prompt."""
    shares = [share(" ".join(map(str, text.prompt))) for text in texts]
    limit = max(held_out_share, min(shares, default=0.0))
    train, held_out = [], []
    for text, place in zip(texts, shares, strict=True):
        (train if place > limit else held_out).append(text)
    if not train:
        raise LossyValueError(
            f"`--tokens` has to be enough for texts to train on, but all {len(texts)} of them are held out; raise it"
        )
    return train, held_out


def items(texts: Sequence[Text], states: TargetStates) -> list[Item]:
    return [
        {"ids": torch.tensor(x.ids), "answers": torch.arange(len(x.ids)) >= x.answer, "states": read, "last": last}
        for x, (read, last) in zip(texts, states.of(texts), strict=True)
    ]


def collate(batches: Sequence[Sequence[Item]]) -> Item:
    """Join the texts of several batches into one, padded on the right."""
    texts = [*chain.from_iterable(batches)]
    # A multiple of 32 gives few shapes: kernels in reduced precision keep memory for each.
    missing = -max(len(text["ids"]) for text in texts) % _MULTIPLE
    padded = {name: pad_sequence([text[name] for text in texts], batch_first=True) for name in texts[0]}
    return {name: pad(x, (0, 0) * (x.dim() - 2) + (0, missing)) for name, x in padded.items()}
