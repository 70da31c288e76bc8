"""Replays of look-up before a draft: which of both drafts a round is follows from the rounds before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...compat import CandidateGenerator
from ...drafting.draft_ends import DEFAULT_NUM_TOKENS
from ...drafting.lookup_first import Repeats, expected_matches, text_per_cost
from .text_logits import Drafts, TextLogits, rounds_of


class Continuations(CandidateGenerator):
    """Drafts what followed a text's last tokens before, wherever they stand in it, as look-up first would."""

    def __init__(self, count: int) -> None:
        self.count, self.repeats = count, Repeats(())
        self._seen = 0

    def get_candidates(self, input_ids: Tensor, **_: Any) -> tuple[Tensor, None]:
        self.repeats.follow(input_ids[0, self._seen :].tolist())
        self._seen = input_ids.shape[1]
        found = self.repeats.continuation(self.count) if self.repeats.length else []
        return torch.cat([input_ids, input_ids.new_tensor([found])], dim=1), None

    def update_candidate_strategy(self, input_ids: Tensor, scores: Tensor, num_matches: int) -> None:
        return


def chances_of(prompt: Sequence[int], answer: Sequence[int]) -> Tensor:
    """Return ``(T,)`` the chance that a looked-up token matches, in drafts from each token on; 0 without a match."""
    repeats, found = Repeats(prompt), []
    for token in answer:
        found.append(repeats.expected(1) if repeats.length else 0.0)
        repeats.follow([token])
    return torch.tensor(found, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class LookupFirstLogits:
    """The laws of a draft, and what the text says where it repeats itself; see :class:`LookupFirstDrafter`."""

    by_draft: TextLogits
    repeated: TextLogits  # whose step K is the most tokens that are looked up
    chances: Tensor  # ``(B, T)`` that a looked-up token matches
    price: float  # of a draft's forward, in forwards of the target
    at_once: bool  # whether one forward drafts all tokens
    alone: ClassVar[bool] = False

    @classmethod
    def of(
        cls, by_draft: TextLogits, repeats: Sequence[Mapping[str, Tensor]], price: float, at_once: bool
    ) -> LookupFirstLogits:
        """Join texts with what is looked up along them: the fields of :class:`TextLogits`, and chances."""
        chances = torch.nn.utils.rnn.pad_sequence([text["chances"] for text in repeats], batch_first=True)
        return cls(by_draft, TextLogits.of(repeats, by_draft.limit), chances, price, at_once)

    @property
    def lengths(self) -> Tensor:
        return self.by_draft.lengths

    @property
    def limit(self) -> int:
        return self.by_draft.limit

    def drafts(self, copies: int, gamma: int) -> LookupFirstDrafts:
        looking = self.repeated.drafts(copies, self.repeated.p.shape[2])
        drafts = LookupFirstDrafts(self.by_draft.drafts(copies, gamma).laws, gamma)
        drafts.begin(looking, self.chances.repeat_interleave(copies, 0), self.price, self.at_once)
        return drafts


class LookupFirstDrafts(Drafts):
    """Drafts of both kinds: those that :class:`~hf_lossy_assist.drafting.lookup_first.LookupFirstDrafter` takes."""

    def begin(self, looking: Drafts, chances: Tensor, price: float, at_once: bool) -> None:
        self._looking, self._chances, self._price, self._at_once = looking, chances, price, at_once
        self.looked_up = torch.zeros(len(self.lengths), looking.gamma + 1, dtype=torch.float64)
        # Rounds of the draft, what they kept, and their forwards; one more is assumed that kept all.
        first = torch.tensor([[1, DEFAULT_NUM_TOKENS, DEFAULT_NUM_TOKENS]], dtype=torch.float64)
        self._own = first.repeat(len(self.lengths), 1)

    def after(self, start: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        a = self.laws.at(self._chances[..., None], start, 1)[:, 0]
        count = (self.laws.limit - start - 1).clamp(0, self._looking.gamma)
        rounds, kept, calls = self._own.unbind(1)
        others = text_per_cost(rounds, kept, calls, self._price)
        self._looks = looks = (a > 0) & (rounds > 1) & (1 + expected_matches(a, count) > others)
        n = max(self.gamma, self._looking.gamma)
        both = zip(super().after(start), self._looking.after(start), (n + 1, n, n, n, None), strict=True)
        return tuple(_chosen(looks, *parts) for parts in both)

    def observe(self, drafted: Tensor, kept: Tensor, alive: Tensor) -> None:
        own, calls = alive & ~self._looks, drafted.clamp(max=1) if self._at_once else drafted
        self.sizes += rounds_of(drafted.clamp(max=self.gamma), own, self.sizes)
        self.looked_up += rounds_of(drafted.clamp(max=self._looking.gamma), alive & self._looks, self.looked_up)
        told = torch.stack([torch.ones_like(kept), kept, calls], dim=1)
        self._own += told * (own & (calls > 0))[:, None]


def _chosen(looks: Tensor, own: Tensor, looked: Tensor, count: int | None) -> Tensor:
    """Return each row's of both values, filled up to ``count`` columns."""
    if count is not None:
        fill = (0, 0) * (own.dim() - 2)
        own, looked = (pad(x, (*fill, 0, count - x.shape[1])) for x in (own, looked))
    return torch.where(looks.view(-1, *[1] * (own.dim() - 1)), looked, own)
