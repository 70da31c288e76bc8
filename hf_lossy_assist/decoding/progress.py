"""How far a call's texts have come, and where they end: exactly where plain ``generate()`` ends them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    EosTokenCriteria,
    GenerationConfig,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
)
from transformers.generation.streamers import BaseStreamer

from ..core.limits import BoundLimits, LosslessPositions
from ..core.shapes import Shape
from ..core.texts import ROOM, Texts
from ..core.transfers import to_device


class TokenStatusStreamer(BaseStreamer):
    """A streamer that is also told how each token got into the output.

    ``put_statuses`` follows one or more calls of ``put``. It gives the status of every token since the last time,
    without the prompt: ``"accepted"``, ``"accepted_lossy"``, ``"corrected"`` or ``"bonus"``, as in the trace of
    :class:`~hf_lossy_assist.LossyStats`. Plain ``generate()`` never calls it.

    Examples
    --------
    >>> from hf_lossy_assist import enabled, pairs
    >>> class Lossy(TokenStatusStreamer):
    ...     count = 0
    ...     def put(self, value): ...  # the prompt, then the tokens of each round
    ...     def put_statuses(self, statuses):
    ...         self.count += statuses.count("accepted_lossy")
    ...     def end(self):
    ...         print(self.count > 0)
    >>> pair = pairs.load("arithmetic")
    >>> inputs = pair.tokenizer(pair.task.examples("test", 2)[1].prompt, return_tensors="pt")
    >>> with enabled(pair.target, assistant_model=pair.draft, lossy_mode="min_p"):
    ...     _ = pair.target.generate(**inputs, do_sample=False, max_new_tokens=80, streamer=Lossy())
    True
    """

    def put_statuses(self, statuses: Sequence[str]) -> None:
        """Take the statuses of the newest tokens."""
        raise NotImplementedError


Scores = Callable[[int], tuple[Tensor, ...] | None]
"""Returns the scores ``(B, V)`` of the first tokens of all texts, for criteria that read them."""

_STATELESS = (StopStringCriteria, MaxTimeCriteria)


class Progress:
    """How far the rows of a call have come; it cuts each at the first token after which a stopping criterion holds.

    Length and EOS need only the tokens on the host. transformers' own stateless criteria are asked row by row, as soon
    as a row has the token. All other criteria may count their calls or remember rows, so they are asked as plain
    ``generate()`` asks them: about the whole batch, once per position, in order. This has to wait until every row that
    goes on has reached the position; rows that were ahead are then cut back.

    Runs that decode one row each share it. ``limits`` say where the output may be lossy; None for everywhere. Texts may
    quote ``quotable`` ``(B, P)``. The ``streamer`` is shown every token; for one row only.

    Attributes
    ----------
    generated
        How many tokens each row has.
    ended
        Whether each row has ended; criteria that are asked in order may still cut it back.
    lossy, charged
        How many tokens of each row were kept lossily, and what they cost a rule with a budget over the whole text.
    """

    def __init__(
        self,
        config: GenerationConfig,
        criteria: StoppingCriteriaList,
        prompts: Tensor,
        pad: int = 0,
        limits: BoundLimits | None = None,
        streamer: Any = None,
        quotable: Tensor | None = None,
    ) -> None:
        batch, self.prompt = prompts.shape
        self.quotable = quotable
        self.limits = limits
        self.streamer = streamer
        self.generated = [0] * batch
        self.ended = [False] * batch
        self.lossy, self.charged = [0] * batch, [0.0] * batch
        self.max_length = config.max_length
        self.eos: set[int] = set()
        self._by_row, self._in_order = StoppingCriteriaList(), StoppingCriteriaList()
        # Whether rows that are decoded apart take turns: none may be far ahead when criteria are asked, or time is up.
        self.take_turns = False
        # Without a criterion on EOS, plain generation pads nothing: an ended row goes on until all end.
        self._pads = batch == 1 or any(hasattr(criterion, "eos_token_id") for criterion in criteria)
        self._contexts: list[MaxLengthCriteria] = []  # they remind of the model's context
        for criterion in criteria:
            if type(criterion) is MaxLengthCriteria:
                self.max_length = min(self.max_length, criterion.max_length)
                if criterion.max_position_embeddings is not None:
                    self._contexts.append(criterion)
            elif type(criterion) is EosTokenCriteria:
                self.eos.update(criterion.eos_token_id.flatten().tolist())
            elif type(criterion) in _STATELESS and self._pads:
                self._by_row.append(criterion)
                self.take_turns |= type(criterion) is MaxTimeCriteria
            else:
                self._in_order.append(criterion)
                self.take_turns = True
        self._asks = bool(self._by_row or self._in_order)
        self._pad = pad
        self._texts = prompts.long()
        self._asked = 0  # how many positions the criteria have been asked about in order
        self._held = [False] * batch  # rows that a criterion has ended, but that go on until all end

    def remaining(self, rows: Sequence[int], most: int = sys.maxsize) -> list[int]:
        """Return how many more tokens fit into each row's text, at ``most`` so many."""
        longest = self.max_length - self.prompt
        return [min(most, longest - self.generated[row]) for row in rows]

    def commit(self, rows: Sequence[int], tokens: Sequence[list[int]], scores: Scores = lambda _: None) -> list[int]:
        """Let rows grow by tokens up to where they end; return by how many each has grown."""
        before = [self.generated[row] for row in rows]
        for row, new in zip(rows, tokens, strict=True):
            if not self.ended[row]:
                self._grow(row, new, scores)
        if self._in_order:
            while self._ask_about_next(scores):
                pass
        counts = [max(0, self.generated[row] - start) for row, start in zip(rows, before, strict=True)]
        for criterion in self._contexts:
            if (length := self.prompt + max(self.generated)) > criterion.max_position_embeddings:
                criterion(self._texts.new_empty(1, min(length, self.max_length - 1)), None)
        if self.streamer is not None and counts[0]:
            self.streamer.put(torch.tensor(tokens[0][: counts[0]]))
        return counts

    def _grow(self, row: int, tokens: list[int], scores: Scores) -> None:
        start = self.generated[row]
        room, count = self.max_length - self.prompt - start, None
        for i, token in enumerate(tokens, 1):
            if token in self.eos or i >= room:
                count = i
                break
        if self._asks:
            self._write(row, tokens[:count])
            for i in range(1, len(tokens[:count]) + 1) if self._by_row else ():
                text = self._texts[row : row + 1, : self.prompt + start + i]
                if bool(self._by_row(text, scores(start + i)).all()):
                    count = i
                    break
        self.ended[row] = count is not None
        self._grow_to(row, start + (len(tokens) if count is None else count))

    def _ask_about_next(self, scores: Scores) -> bool:
        """Ask about the next position once every row has reached it; return whether it was asked about."""
        position = self._asked + 1
        there = [count >= position for count in self.generated]
        if not any(there) or not all(has or ended for has, ended in zip(there, self.ended, strict=True)):
            return False
        self._asked = position
        holds = self._in_order(self._texts[:, : self.prompt + position], scores(position)).tolist()
        if not self._pads:
            self._held = [a or b for a, b in zip(self._held, holds, strict=True)]
            holds = [all(self._held)] * len(holds)
        for row, ends in enumerate(holds):
            if ends and there[row]:
                self.ended[row] = True
                self._grow_to(row, position)
        return True

    def _grow_to(self, row: int, count: int) -> None:
        if self._in_order:
            self._texts[row, self.prompt + count :] = self._pad
        self.generated[row] = count

    def _write(self, row: int, tokens: list[int]) -> None:
        start = self.prompt + self.generated[row]
        missing = start + len(tokens) - self._texts.shape[1]
        if missing > 0:
            self._texts = torch.nn.functional.pad(self._texts, (0, missing + ROOM), value=self._pad)
        self._texts[row, start : start + len(tokens)] = torch.tensor(tokens, device=self._texts.device)

    def lossless_positions(self, candidate: Tensor, shape: Shape, texts: Texts) -> LosslessPositions | None:
        """Return where drafted tokens at the end of ``candidate`` ``(B, L)`` have to be lossless; None for nowhere."""
        if self.limits is None:
            return None
        generated = [length - texts.prompt for length in texts.lengths]
        lossy = [self.lossy[row] for row in texts.rows]
        prompts = self.quotable
        if prompts is not None and len(texts.rows) < len(prompts):
            prompts = prompts.index_select(0, to_device(texts.rows, prompts.device))
        return self.limits.lossless_positions(candidate, shape, generated, lossy, prompts)
