"""Batches for training a draft: texts with the target's states, in an order that can be taken up anywhere."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...errors import LossyValueError
from ...tasks.task_data import share
from .state_shards import StateShards, cut
from .text_store import TextStore
from .text_writing import Text

# Shards whose texts are mixed: about as many tokens as some ten batches have.
_GROUP = 4
_MULTIPLE = 32


def _padded(rows: Sequence[Tensor], width: int) -> Tensor:
    padded = rows[0].new_zeros(len(rows), width, *rows[0].shape[1:])
    for out, row in zip(padded, rows, strict=True):
        out[: len(row)] = row
    return padded


@dataclass(frozen=True)
class DraftBatch:
    """Texts, padded on the right.

    Attributes
    ----------
    ids
        ``(B, L)`` the tokens.
    answers
        ``(B, L)`` True at tokens of answers.
    states
        ``(B, L, k·d)`` states of the target's layers that the draft reads.
    last
        ``(B, L, d)`` the target's last state, which enters its LM head.
    """

    ids: Tensor
    answers: Tensor
    states: Tensor
    last: Tensor

    @classmethod
    def of(cls, texts: Sequence[Text], states: Sequence[tuple[Tensor, Tensor]]) -> DraftBatch:
        """Return the batch of some texts and their states."""
        lengths = torch.tensor([len(text.ids) for text in texts])[:, None]
        starts = torch.tensor([text.answer for text in texts])[:, None]
        # Few different shapes: kernels in reduced precision keep memory for each shape they have met.
        width = -(-int(lengths.max()) // _MULTIPLE) * _MULTIPLE
        positions = torch.arange(width)
        columns = ([torch.tensor(text.ids) for text in texts], *([pair[k] for pair in states] for k in (0, 1)))
        ids, *padded = (_padded(rows, width) for rows in columns)
        return cls(ids, (positions >= starts) & (positions < lengths), *padded)

    def to(self, device: torch.device) -> DraftBatch:
        """Return the batch on a device."""
        return DraftBatch(*(x.to(device) for x in (self.ids, self.answers, self.states, self.last)))


@dataclass(frozen=True)
class DataPosition:
    """How far training has gone through the texts.

    Attributes
    ----------
    epoch
        Times that it has gone through all.
    shards
        The batches of texts that there were when this epoch began.
    taken
        Batches that this epoch has had.
    """

    epoch: int = 0
    shards: tuple[int, ...] = ()
    taken: int = 0


class DraftData:
    """The texts of a run for training, and some that are held out.

    Parameters
    ----------
    store
        The texts.
    states
        The target's states at them.
    batch_tokens
        Tokens in a batch, padding included.
    held_out_share
        Share of the prompts that no training sees.
    seed
        Of the order.
    process, processes
        Which batches are this process's.
    """

    def __init__(
        self, store: TextStore, states: StateShards, *, batch_tokens: int = 8192, held_out_share: float = 0.05,
        seed: int = 0, process: int = 0, processes: int = 1,
    ) -> None:  # fmt: skip
        self.store, self.states = store, states
        self.batch_tokens, self.held_out_share, self.seed = batch_tokens, held_out_share, seed
        self.process, self.processes = process, processes

    def batches(self, position: DataPosition) -> Iterator[tuple[DraftBatch, DataPosition]]:
        """Yield batches without end, each with the position behind it, from a position on."""
        while True:
            if not position.shards:
                position = replace(position, shards=tuple(self.store.batches()), taken=0)
            empty = not position.taken
            for batch, after in self._epoch(position):
                empty = False
                yield batch, after
            if empty:
                raise LossyValueError(
                    f"{str(self.store.folder)!r} has too few texts for a batch of each of {self.processes} processes: "
                    "let the target write more, by `--tokens`"
                )
            position = DataPosition(position.epoch + 1)

    def _epoch(self, position: DataPosition) -> Iterator[tuple[DraftBatch, DataPosition]]:
        mixer = random.Random(f"{self.seed}/{position.epoch}")
        order = list(position.shards)
        mixer.shuffle(order)
        seen = 0
        for first in range(0, len(order), _GROUP):
            group = order[first : first + _GROUP]
            places = [
                (batch, i, text)
                for batch in group
                for i, text in enumerate(self.store.read(batch))
                if not self._held_out(text)
            ]
            lengths = [len(text.ids) for _, _, text in places]
            cuts = cut(sorted(range(len(places)), key=lambda i: lengths[i]), lengths, self.batch_tokens)
            mixer.shuffle(cuts)
            cuts = cuts[: len(cuts) // self.processes * self.processes]  # all processes do as many
            if seen + len(cuts) <= position.taken:
                seen += len(cuts)
                continue
            states = {batch: self.states.of(batch, self.store.read(batch)) for batch in {place[0] for place in places}}
            for turn in range(0, len(cuts), self.processes):
                seen += self.processes
                if seen <= position.taken:
                    continue
                chosen = [places[i] for i in cuts[turn + self.process]]
                batch = DraftBatch.of([text for *_, text in chosen], [states[b][i] for b, i, _ in chosen])
                yield batch, replace(position, taken=seen)

    def held_out_texts(self, n: int) -> list[Text]:
        """Return the first texts whose prompts no training sees."""
        found: list[Text] = []
        for batch in self.store.batches():
            found += [text for text in self.store.read(batch) if self._held_out(text)]
            if len(found) >= n:
                break
        return found[:n]

    def held_out(self, n: int) -> list[DraftBatch]:
        """Return the same as batches."""
        found = sorted(self.held_out_texts(n), key=lambda text: len(text.ids))
        states = self.states.compute(found)
        rows = cut(range(len(found)), [len(text.ids) for text in found], self.batch_tokens)
        return [DraftBatch.of([found[i] for i in part], [states[i] for i in part]) for part in rows]

    def some_states(self) -> Tensor:
        """Return ``(N, k·d)`` states at the answers of the first texts."""
        texts = self.store.read(self.store.batches()[0])
        states = self.states.of(self.store.batches()[0], texts)
        return torch.cat([read[text.answer :] for text, (read, _) in zip(texts, states, strict=True)])

    def frequent(self, n: int, target: PreTrainedModel) -> Tensor:
        """Return the ``n`` tokens that are most frequent in the target's answers; of equal ones, those with lower ids.

        All of the vocabulary where it has no more.
        """
        size = target.config.get_text_config(decoder=True).vocab_size
        counts = torch.zeros(size, dtype=torch.long)
        for batch in self.store.batches():
            for text in self.store.read(batch):
                if not self._held_out(text):
                    counts += torch.bincount(torch.tensor(text.ids[text.answer :]), minlength=size)
        return counts.sort(descending=True, stable=True).indices[:n]

    def _held_out(self, text: Text) -> bool:
        return share(" ".join(map(str, text.prompt))) < self.held_out_share
