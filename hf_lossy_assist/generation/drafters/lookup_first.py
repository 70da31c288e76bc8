"""Drafts from the text where it repeats itself, and by another drafter elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Self

from torch import Tensor, nn

from ...core.messages import Commit, Draft
from ...core.texts import Texts
from ...core.transfers import to_device
from ...drafting import Drafter, stacked
from ...drafting.draft_ends import DEFAULT_NUM_TOKENS
from ...models.quantised import dtype_of
from .base import Asked, Kind, Making, StaticDraft, chosen, register

SHORTEST = 3
"""The fewest last tokens of a text that have to stand in it before."""
_PLACES = 16  # of these tokens that are tried, from the newest
_SIZES = {"int8": 1, "int4": 0.5}


class Repeats:
    """Where a growing text has had its last tokens before, and how often what followed there followed again.

    ``length`` is that of the longest match, 0 for none. After a match of m tokens, the next one is expected to match
    with probability a = (m + hits) / (m + 2 + tries): the mean of a Beta law, for which the m tokens are hits, and two
    more are misses. Hits and tries are those of generated tokens after matches about as long (3, 4 to 7, 8 to 15, …).

    Examples
    --------
    >>> repeats = Repeats([5, 6, 7, 8, 9, 5, 6, 7])
    >>> repeats.length, repeats.continuation(4), repeats.expected(1)
    (3, [8, 9, 5, 6], 0.6)
    >>> repeats.follow([8])
    >>> repeats.length, repeats.continuation(2)
    (4, [9, 5])
    """

    def __init__(self, text: Iterable[int]) -> None:
        self.length = 0
        self._text: list[int] = []
        self._next = 0  # the place of the token that followed the match
        self._places: dict[tuple[int, ...], list[int]] = {}
        self._hits: Counter[int] = Counter()
        self._tries: Counter[int] = Counter()
        for token in text:
            self._append(token)

    def follow(self, tokens: Iterable[int]) -> None:
        """Let the text grow, and learn which tokens were foreseen."""
        for token in tokens:
            if self.length:
                self._tries[self._kind] += 1
                self._hits[self._kind] += self._text[self._next] == token
            self._append(token)

    def continuation(self, count: int) -> list[int]:
        """Return the tokens that followed the match; it may overlap them."""
        text, start, tokens = self._text, self._next, []
        for i in range(start, start + count):
            tokens.append(text[i] if i < len(text) else tokens[i - len(text)])
        return tokens

    def expected(self, count: int) -> float:
        """Return how many of ``count`` tokens are expected to match: Σ aⁱ."""
        a = (self.length + self._hits[self._kind]) / (self.length + 2 + self._tries[self._kind])
        return a * (1 - a**count) / (1 - a)

    @property
    def _kind(self) -> int:
        return self.length.bit_length()

    def _append(self, token: int) -> None:
        text = self._text
        goes_on = self.length > 0 and text[self._next] == token  # then no other match is longer
        self.length, self._next = (self.length + 1, self._next + 1) if goes_on else (0, 0)
        text.append(token)
        end = len(text)
        if end < SHORTEST:
            return
        places = self._places.setdefault(tuple(text[-SHORTEST:]), [])
        if not goes_on:
            for place in reversed(places[-_PLACES:]):
                length = SHORTEST
                while length < place and text[place - 1 - length] == text[end - 1 - length]:
                    length += 1
                if length > self.length:
                    self.length, self._next = length, place
        places.append(end)


@dataclass
class _Row:
    """What one text has shown so far."""

    repeats: Repeats
    # Of the other drafter's rounds, of which one more is assumed that kept all.
    rounds: int = 1
    kept: int = DEFAULT_NUM_TOKENS
    calls: int = DEFAULT_NUM_TOKENS
    looks_up: list[int] = field(default_factory=list)  # this round's tokens

    def promises_more(self, count: int, price: float) -> bool:
        """Tell whether ``count`` looked-up tokens promise more text per cost than the other drafter does."""
        if not self.repeats.length or self.rounds == 1:
            return False
        by_drafter = (self.rounds + self.kept) / (self.rounds + price * self.calls)
        return 1 + self.repeats.expected(count) > by_drafter


class LookupFirstDrafter(Drafter):
    """Drafts what followed a text's last tokens before, where that promises more than ``drafter``, and else by it.

    A round costs one forward of the target, and ``price`` of it for each forward of the draft model; looking up costs
    nothing. So a row looks up where 1 + Σᵢ aⁱ > (1 + M) / (1 + c·d): :class:`Repeats` gives a, M is the mean number of
    tokens that the row's other rounds kept, d that of their forwards, and c the price. In a batch forwards are saved
    only if all rows look up; else each decides with c = 0. The first round is the drafter's. A looked-up draft, of up
    to ``count`` tokens that end before one in ``never``, is a point mass: the choice reads what is committed alone, so
    lossless rules stay lossless. Prompt look-up: Saxena 2023, https://github.com/apoorvumang/prompt-lookup-decoding.
    """

    def __init__(self, drafter: Drafter, count: int, price: float, never: Sequence[int] = ()) -> None:
        self.drafter, self.count, self.price, self._never = drafter, count, price, frozenset(never)
        self._rows: dict[int, _Row] = {}
        self._calls = 0

    def propose(self, ids: Tensor, layout: Texts, remaining: Sequence[int]) -> Draft:
        if not self._rows:
            self._rows = {row: _Row(Repeats(text)) for row, text in zip(layout.rows, ids.tolist(), strict=True)}
        rows = [self._rows[row] for row in layout.rows]
        counts = [min(self.count, room - 1) for room in remaining]
        both = list(zip(rows, counts, strict=True))
        price = self.price if all(row.promises_more(count, self.price) for row, count in both) else 0.0
        for row, count in both:
            row.looks_up = self._allowed(row.repeats.continuation(count)) if row.promises_more(count, price) else []
        # The drafter has no room in rows that look up, so it gives them nothing, and runs no model if all do.
        rooms = [1 if row.looks_up else room for row, room in zip(rows, remaining, strict=True)]
        draft = self.drafter.propose(ids, layout, rooms)
        self._calls = draft.cost.calls
        if not any(row.looks_up for row in rows):
            return draft
        self.drafter.forget(ids)  # its own tokens in rows that look up must not pass for the text's
        own = (len(draft),) * len(rows) if draft.lengths is None else draft.lengths
        parts = [
            Draft(to_device([row.looks_up], ids.device)) if row.looks_up else _part(draft, i, own[i])
            for i, row in enumerate(rows)
        ]
        cost = replace(draft.cost, looked_up=sum(len(row.looks_up) for row in rows))
        return replace(stacked(parts, layout.filler), cost=cost, target_inputs=draft.target_inputs)

    def observe(self, commit: Commit) -> None:
        rows = [self._rows[row] for row in commit.rows]
        kept = [accepted for row, accepted in zip(rows, commit.accepted, strict=True) if not row.looks_up]
        for row, tokens, count, accepted in zip(rows, commit.tokens, commit.counts, commit.accepted, strict=True):
            row.repeats.follow(tokens[:count])
            if not row.looks_up and self._calls:
                row.rounds, row.kept, row.calls = row.rounds + 1, row.kept + accepted, row.calls + self._calls
        # What was looked up says nothing about the drafter.
        mean = round(sum(kept) / len(kept)) if kept else 0
        told = tuple(mean if row.looks_up else n for row, n in zip(rows, commit.accepted, strict=True))
        self.drafter.observe(replace(commit, accepted=told))

    def in_use(self) -> AbstractContextManager[None]:
        return self.drafter.in_use()

    def _allowed(self, tokens: list[int]) -> list[int]:
        return tokens[: next((i for i, token in enumerate(tokens) if token in self._never), None)]


def price_of(draft: nn.Module, target: nn.Module) -> float:
    """Return what a draft model's forward costs, in forwards of the target: the share of weights that it reads."""
    return _bytes(draft) / _bytes(target)


def _bytes(model: nn.Module) -> float:
    """Return the bytes of the weights that a forward over few tokens reads, however they are stored."""
    count = 0
    modules = {module for name, module in model.named_modules() if name != "lm_head"}
    for module in modules | {model.get_output_embeddings() or model}:  # a head's LM head may be the target's
        if hasattr(module, "in_features"):  # packed and quantised weights are no parameters
            count += module.in_features * module.out_features
        elif not isinstance(module, nn.Embedding):
            count += sum(weight.numel() for weight in module.parameters(recurse=False))
    return count * _SIZES.get(dtype_of(model), model.dtype.itemsize)


def _part(draft: Draft, i: int, length: int) -> Draft:
    """Return the i-th row's draft."""
    tokens, logits = (None if x is None else x[i : i + 1, :length] for x in (draft.tokens, draft.logits))
    return Draft(tokens, logits)


_OPTION = "prompt_lookup_num_tokens"


@register
@dataclass(frozen=True, eq=False)
class LookupFirst(Kind):
    """`prompt_lookup_num_tokens` beside an `assistant_model` or `use_mtp`, whose kind is ``inner``."""

    inner: Kind = None
    remedy = "leave it out"
    title = f"`{_OPTION}`"

    def __post_init__(self) -> None:
        inner = self.inner
        vars(self).update(
            gives=inner.gives - {"q", "hidden", "unverified"}, model=inner.model, compares=inner.compares,
            cached=inner.cached, reads=inner.reads, most=inner.most, looked_up=self.asked.options[_OPTION],
        )  # fmt: skip

    @classmethod
    def chosen(cls, asked: Asked) -> Self | None:
        if asked.generator is not None or _OPTION not in asked.options:
            return None
        others = {name: x for name, x in asked.options.items() if name != _OPTION}
        inner = chosen(replace(asked, options=others))
        return None if inner is None or inner.follows_one_text else cls(asked, inner)

    @property
    def longest(self) -> int | None:
        by_model = self.inner.longest
        return by_model and max(by_model, self.looked_up)

    def check(self) -> None:
        self.inner.check()

    def make(self, making: Making) -> Drafter:
        price = price_of(self.model, self.asked.target)
        return LookupFirstDrafter(self.inner.make(making), self.looked_up, price, making.never)

    def static(self, making: Making) -> StaticDraft | None:
        found = self.inner.static(making)
        return found and replace(found, reads_all=True)  # it has not read what was looked up
