"""Sources propose laws, and strategies draft from them: here chains, token by token or as a block."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from statistics import mean
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList

from ..compat.multimodal import reading
from ..core.distributions import Randomness
from ..core.messages import Commit, Draft, DraftCost
from ..core.texts import Texts
from ..core.transfers import Look, looks_late
from ..models.lm_head_hook import LMHeadHook
from ..models.processing import process, reads_text
from ..models.runner import ModelRunner, Nodes, WholeTokens
from ..models.static.fixed import chance_of
from . import Drafter
from .draft_ends import DEFAULT_NUM_TOKENS, DraftStop
from .vocabulary import NEVER, SAME, Vocabulary

_WITHOUT = nullcontext()


class Source:
    """Proposes the laws of tokens after texts, before the user's processors; a strategy drafts from it.

    Attributes
    ----------
    model
        The model that ``runner`` runs.
    calls, tokens
        Forwards so far, and the tokens in them.
    target_inputs
        Inputs of the target's forwards that it requires.
    hidden
        ``(B, keep, d)`` the states that gave the last logits, where they are kept.
    """

    target_inputs: Mapping[str, Any] = MappingProxyType({})
    hidden: Tensor | None = None
    positions: int | None = None  # how many the model has learned, where these are not any number
    _hook: LMHeadHook | None = None

    def __init__(self, runner: ModelRunner, vocabulary: Vocabulary = SAME) -> None:
        self.runner, self.model = runner, runner.model
        self.vocabulary = vocabulary
        self.device = runner.device
        self.calls = self.tokens = 0

    def room(self, ids: Tensor) -> int:
        """Return how many tokens it can draft after ``ids`` ``(B, W)``."""
        # The last drafted token is not read.
        return sys.maxsize if self.positions is None else max(0, self.positions + 1 - ids.shape[1])

    def begin(self, ids: Tensor) -> Tensor:
        """Begin a draft after ``ids`` ``(B, W)``; return their last tokens, which :meth:`logits` reads first."""
        return ids[:, self.runner.seen :]

    def logits(self, tokens: Tensor, keep: int = 1, tree: Nodes | None = None) -> Tensor:
        """Read the next ``tokens`` ``(B, k)`` of the text or the draft, which may be nodes of a ``tree``.

        Return logits ``(B, keep, V)`` over the target's vocabulary, in float32: those after the last tokens.
        """
        translates = self.vocabulary is not SAME  # two calls less for each drafted token
        own = self.vocabulary.context(tokens) if translates else tokens
        if self._hook is not None:
            self._hook.over(keep - 1)
        with _WITHOUT if self.calls else reading(self.model):  # it may need an image, or another kind of image
            logits = self.runner.forward(own.to(self.device), keep, tree).logits
        self.calls += 1
        self.tokens += self.runner.sent
        if self._hook is not None:
            self.hidden = self._hook.hidden
        if logits.shape[1] > keep:
            logits = logits[:, -keep:]
        logits = logits.to(device=tokens.device, dtype=torch.float32)
        return self.vocabulary.logits(logits) if translates else logits

    def whole(self, ids: Tensor, count: int, randomness: Randomness, calls: int) -> WholeTokens | None:
        """Draft ``count`` tokens in one go, by as many forwards as ``calls``.

        None where the runner is not prepared for that.
        """
        if (drafted := self.runner.draft(ids, count, randomness)) is None:
            return None
        self.calls, self.tokens = self.calls + calls, self.tokens + self.runner.sent
        tensors = (None if x is None else x.to(ids.device) for x in (drafted.tokens, drafted.logits, drafted.q))
        return WholeTokens(*tensors, states=drafted.states)

    def rewind(self, length: int) -> None:
        """Forget everything after the first ``length`` tokens."""
        self.runner.rewind(length)

    def learn(self, commit: Commit) -> None:
        """Follow what a round has committed."""
        self.runner.follow(commit)

    def in_use(self) -> AbstractContextManager[None]:
        """It is asked inside this block only."""
        return self.runner.in_use()


class Sampler:
    """Chooses tokens from the very law q that it reports, which is a source's after the user's ``processors``.

    Tokens in ``never`` are not drafted.
    """

    def __init__(
        self,
        processors: LogitsProcessorList | None = None,
        do_sample: bool = False,
        randomness: Randomness | None = None,
        never: Sequence[int] = (),
    ) -> None:
        self.processors = LogitsProcessorList() if processors is None else processors
        self.do_sample = do_sample
        self.randomness = Randomness() if randomness is None else randomness
        self.reads_text = reads_text(self.processors)
        self._never = torch.tensor(never) if never else None

    def __call__(
        self, logits: Tensor, text: Tensor, drafted: Sequence[Tensor], wants_q: bool = False
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Choose the next tokens by their raw logits ``(B, n, V)``: several where no processor reads the text.

        Return the tokens ``(B, n)``, the logits of q ``(B, n, V)`` and, where it is wanted, each token's q ``(B, n)``.
        """
        if self._never is not None:
            logits = logits.index_fill(-1, self._never.to(logits.device), NEVER)
        if self.processors:
            text = torch.cat([text, *drafted], dim=-1) if self.reads_text else text
            logits = process(self.processors, text, logits)
        tokens = self.randomness.categorical(logits.softmax(-1)) if self.do_sample else logits.argmax(-1)
        if not wants_q:
            return tokens, logits, None
        return tokens, logits, chance_of(tokens, logits)


Drafted = tuple[Tensor, Tensor | None, Tensor | None, Sequence[Sequence[bool]]]
"""Tokens ``(B, n)``, q's logits, the states that gave these, and which rows draft on, token by token."""

_ROUNDS = 3


class SourceDrafter(Drafter):
    """Drafts from a source, which follows every round."""

    def __init__(self, source: Source, sampler: Sampler | None = None) -> None:
        self.source = source
        self.sampler = Sampler() if sampler is None else sampler

    def observe(self, commit: Commit) -> None:
        self.source.learn(commit)

    def in_use(self) -> AbstractContextManager[None]:
        return self.source.in_use()


class ChainDrafter(SourceDrafter):
    """Drafts one token after another.

    ``size`` is γ. Where it ``adapts``, it grows by two after a draft that was kept whole, and else shrinks by one:
    transformers' ``"heuristic"`` schedule. ``keep_logits`` returns the logits of q with the tokens, and ``stop`` ends
    drafts early.
    """

    def __init__(
        self,
        source: Source,
        size: int,
        sampler: Sampler | None = None,
        keep_logits: bool = True,
        stop: DraftStop | None = None,
        adapts: bool = False,
    ) -> None:
        super().__init__(source, sampler)
        self.size, self.adapts = size, adapts
        self.keep_logits = keep_logits
        self.stop = stop
        self._drafted = 0
        self._lasted: deque[int] = deque(maxlen=_ROUNDS)  # how many tokens the last drafts that could end early had

    def propose(self, ids: Tensor, layout: Texts | None, remaining: Sequence[int]) -> Draft:
        source = self.source
        before = source.calls, source.tokens
        self._drafted = n = min(self.size, max(remaining) - 1, source.room(ids))
        if n <= 0:
            return Draft(ids[:, :0], target_inputs=source.target_inputs)
        tokens, logits, hidden, going = self._draft(ids, n, remaining)
        self._drafted = n = tokens.shape[1]
        self._lasted.append(n)
        return Draft(
            tokens,
            logits if self.keep_logits else None,
            hidden,
            lengths_of(n, remaining, going),
            cost=DraftCost(source.calls - before[0], source.tokens - before[1]),
            target_inputs=source.target_inputs,
        )

    def _draft(self, ids: Tensor, n: int, remaining: Sequence[int]) -> Drafted:
        """Return up to ``n`` tokens."""
        source, stop = self.source, self.stop
        unread = source.begin(ids)
        if stop is not None:
            stop.begin()
        if (drafted := self._draft_whole(ids, n, remaining)) is not None:
            return drafted
        tokens, scores, states, looks, going = [], [], [], [], []
        late, draws = stop is not None and looks_late(ids.device), []
        for _ in range(n):
            unread, logits, q = self.sampler(source.logits(unread), ids, tokens, stop is not None)
            tokens.append(unread)
            if late and self.sampler.do_sample:
                draws.append(self.sampler.randomness.state(ids.device))
            if self.keep_logits:
                scores.append(logits)
            if source.hidden is not None:
                states.append(source.hidden)
            if stop is not None:
                looks.append(Look(stop.goes_on(q)[:, 0]))
                if len(looks) > late:
                    going.append(going_on(looks[len(going)].tolist(), len(going) + 1, remaining))
                if going and not any(map(all, zip(*going, strict=True))):
                    for of_token in (tokens, scores, states):
                        del of_token[len(going) :]  # drafted before the look
                    if draws:
                        self.sampler.randomness.restore(ids.device, draws[len(going) - 1])
                    break
        logits = torch.cat(scores, dim=1) if scores else None
        hidden = torch.cat(states, dim=1).to(ids.device) if states else None
        return torch.cat(tokens, dim=-1), logits, hidden, going

    def _draft_whole(self, ids: Tensor, n: int, remaining: Sequence[int]) -> Drafted | None:
        """Draft several tokens in one go, and go on while a row does. None where that is not prepared."""
        source, stop, randomness = self.source, self.stop, self.sampler.randomness
        text, parts, going = ids, [], []
        count = n if stop is None else min(n, self._at_once())
        while count and (part := source.whole(text, count, randomness, calls=count)) is not None:
            parts.append(part)
            if stop is None:
                break
            more = columns_of(Look(stop.goes_on(part.q)).tolist(), remaining, going)
            going += more
            if part.states and len(more) < count:
                randomness.restore(ids.device, part.states[len(more) - 1])  # as if no more had been drawn
            if not any(map(all, zip(*going, strict=True))):
                break
            text, count = torch.cat([text, part.tokens], dim=-1), min(n - len(going), self._at_once())
        if not parts:
            return None
        tokens, logits = parts[0].tokens, parts[0].logits
        if len(parts) > 1:
            tokens, logits = (torch.cat([getattr(x, name) for x in parts], dim=1) for name in ("tokens", "logits"))
        kept = n if stop is None else len(going)
        return tokens[:, :kept], logits[:, :kept], None, going

    def _at_once(self) -> int:
        """Return how many tokens to draft before a look: about as many as the last drafts had, so few are in vain."""
        usual = mean(self._lasted or [DEFAULT_NUM_TOKENS])
        return min(self.source.runner.lengths, key=lambda length: abs(length - usual), default=1)

    def forget(self, ids: Tensor) -> None:
        self.source.rewind(ids.shape[1] - 1)

    def observe(self, commit: Commit) -> None:
        if self._drafted and self.adapts:
            whole = round(sum(commit.accepted) / len(commit.accepted)) == self._drafted
            self.size = self.size + 2 if whole else max(1, self.size - 1)
        self._drafted = 0
        self.source.learn(commit)


def going_on(sure: Sequence[bool], drafted: int, remaining: Sequence[int]) -> list[bool]:
    """Return which rows draft on after ``drafted`` tokens: they are sure of the last, and have room for another.

    What a row without room would be sure of depends on how its positions end, and so on the runner.
    """
    return [x and drafted + 1 < room for x, room in zip(sure, remaining, strict=True)]


def columns_of(
    rows: Sequence[Sequence[bool]], remaining: Sequence[int], before: Sequence[Sequence[bool]] = ()
) -> list[Sequence[bool]]:
    """Return which rows draft on after each token, up to the first after which none does.

    ``rows`` has a list for each, of which tokens it is sure; ``before`` has what this returned of earlier tokens.
    """
    found, on = [], [all(row) for row in zip(*before, strict=True)] or [True] * len(rows)
    for column in zip(*rows, strict=True):
        if not any(on):
            break
        found.append(going_on(column, len(before) + len(found) + 1, remaining))
        on = [a and b for a, b in zip(on, found[-1], strict=True)]
    return found


def lengths_of(n: int, remaining: Sequence[int], going: Sequence[Sequence[bool]]) -> tuple[int, ...] | None:
    """Return how many of n drafted tokens each row gets: up to the first after which it ends, and as many as fit."""
    apart = len(remaining) > 1 and bool(going)
    if not apart and min(remaining) > n:
        return None
    full = [n] * len(remaining)
    if apart:
        full = [row.index(False) + 1 if False in row else n for row in zip(*going, strict=True)]
    lengths = tuple(min(length, max(room - 1, 0)) for length, room in zip(full, remaining, strict=True))
    return None if set(lengths) == {n} else lengths
