"""Continuations whose tokens come from the target, from the draft, or from both in turns."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .choice import Choice
from .reading import Memory, only_last_logits, read
from .rows import Rows
from .writing import Ids, Limits

# After a token, the other model takes over with this probability, so each writes about four tokens at a time.
_TURN = 0.25


@dataclass(frozen=True)
class Sheet:
    """A continuation to be written.

    Attributes
    ----------
    prompt
        What is continued.
    authors
        Who may write: one or both of ``"target"`` and ``"draft"``.
    salt
        Makes the draws of several sheets with one prompt independent.
    """

    prompt: Ids
    authors: tuple[str, ...]
    salt: int

    def turns(self, n: int) -> list[str]:
        """Return who writes each of the first ``n`` tokens.

        Examples
        --------
        >>> turns = Sheet((1,), ("draft", "target"), salt=0).turns(1000)
        >>> 0.4 < turns.count("draft") / 1000 < 0.6
        True
        """
        rng = random.Random(f"{self.salt}/{self.prompt}")
        turn = rng.randrange(len(self.authors))
        turns = []
        for _ in range(n):
            turns.append(self.authors[turn])
            turn = (turn + (rng.random() < _TURN)) % len(self.authors)
        return turns


def write_all(
    models: Mapping[str, PreTrainedModel], sheets: Sequence[Sheet], limits: Limits, choice: Choice
) -> list[Ids]:
    """Write every continuation, all at the same time.

    Parameters
    ----------
    models
        The authors.
    sheets
        What is to be written.
    limits
        Where texts end.
    choice
        How tokens are chosen.

    Returns
    -------
    list
        The tokens of every continuation, an EOS included.
    """
    ids = [list(sheet.prompt) for sheet in sheets]
    contexts = [choice.context((sheet.salt, *sheet.prompt)) for sheet in sheets]
    turns = [sheet.turns(limits.max_new_tokens) for sheet in sheets]
    hands = {role: _Hand(model, {i: ids[i] for i in _of(sheets, role)}) for role, model in models.items()}
    unfinished = set(range(len(sheets)))
    for t in range(limits.max_new_tokens):
        if not unfinished:
            break
        tokens: dict[int, int] = {}
        for role, hand in hands.items():
            logits = hand.read(unfinished)
            written = [i for i in logits if turns[i][t] == role]
            if written:
                rows = torch.stack([logits[i] for i in written]).float()
                tokens.update(zip(written, choice.choose(rows, [contexts[i] for i in written]), strict=True))
        # Not before both models have read the tokens before these.
        for i, token in tokens.items():
            ids[i].append(token)
            contexts[i] = choice.extend(contexts[i], token)
        unfinished = {i for i in unfinished if not limits.ends(ids[i][-1])}
    return [tuple(text[len(sheet.prompt) :]) for sheet, text in zip(sheets, ids, strict=True)]


def _of(sheets: Sequence[Sheet], role: str) -> list[int]:
    return [i for i, sheet in enumerate(sheets) if role in sheet.authors]


class _Hand:
    """One model that reads along with the texts it may write to.

    Parameters
    ----------
    model
        The model.
    texts
        The texts, which grow elsewhere, by number.
    """

    def __init__(self, model: PreTrainedModel, texts: Mapping[int, list[int]]) -> None:
        self._texts = texts
        self._numbers = list(texts)
        self._rows = Rows(model, len(texts))
        # The last token is read by the first step.
        known = [text[:-1] for text in texts.values()]
        if not any(known):
            return
        memories = read(model, known, [(Memory(), 0)] * len(known), **only_last_logits(model)).memories
        for row, (text, memory) in enumerate(zip(known, memories, strict=True)):
            self._rows.put(row, memory, len(text))

    def read(self, unfinished: set[int]) -> dict[int, Tensor]:
        """Read the last token of every unfinished text; return ``(V,)`` logits for each."""
        self._drop(unfinished)
        if not self._numbers:
            return {}
        active = [i in unfinished for i in self._numbers]
        logits = self._rows.step([self._texts[i][-1] for i in self._numbers], active)
        return {i: logits[row] for row, (i, on) in enumerate(zip(self._numbers, active, strict=True)) if on}

    def _drop(self, unfinished: set[int]) -> None:
        """Let go of finished texts, once they are half of the batch."""
        left = [row for row, i in enumerate(self._numbers) if i in unfinished]
        if 2 * len(left) <= len(self._numbers):
            self._rows.keep(left)
            self._numbers = [self._numbers[row] for row in left]
