"""A round's decision about one row, on the host: what progress, statistics and stopping go by."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..inspection import Judgement
from ..messages import Decision, Draft


@dataclass(frozen=True)
class RowDecision:
    """A round's decision about one row, on the host.

    Attributes
    ----------
    trusted, n_accepted
        Tokens at the front that were committed without the target, and length of the prefix kept of those after them.
    tokens
        All of these, and the target's own token that follows them, if any.
    lossless, kept_by
        As in :class:`Decision`, 0 or 1, about the tokens that the target decided.
    charge
        What these cost the text.
    judgements
        What the models said about each of ``tokens``, in a run that is inspected.
    """

    trusted: int
    n_accepted: int
    tokens: list[int]
    lossless: list[int]
    kept_by: dict[str, list[int]]
    charge: float = field(default=0.0, kw_only=True)
    judgements: tuple[Judgement, ...] = field(default=(), kw_only=True)

    def used_up(self, undecided: int) -> bool:
        """Tell whether all of ``undecided`` drafted tokens were kept."""
        return self.n_accepted == undecided

    @classmethod
    def fetch(cls, draft: Draft, decision: Decision) -> list[RowDecision]:
        """Bring over all that the host needs, row by row, in one transfer: the round's only synchronisation."""
        masks = {id(mask): mask for mask in (decision.lossless, *decision.kept_by.values())}  # often the same one
        ends = decision.n_accepted.unsqueeze(-1), decision.next_token.unsqueeze(-1)
        packed = torch.cat([*ends, draft.tokens, *masks.values(), *charge_bits(decision)], dim=-1).tolist()
        decided, n = decision.lossless.shape[1], 2 + draft.tokens.shape[1]
        columns = {key: slice(n + i * decided, n + (i + 1) * decided) for i, key in enumerate(masks)}
        lossless = columns[id(decision.lossless)]
        kept_by = {rule: columns[id(mask)] for rule, mask in decision.kept_by.items()}
        rows = [cls._unpack(draft, i, row, n, lossless, kept_by) for i, row in enumerate(packed)]
        if decision.charge is None:
            return rows
        return [replace(row, charge=charge_of(decision, bits[-1])) for row, bits in zip(rows, packed, strict=True)]

    @classmethod
    def of_trusted(cls, draft: Draft) -> list[RowDecision]:
        """Return the same for a draft whose rows have all ended in trusted tokens."""
        rows = zip(draft.tokens.tolist(), draft.trusted, strict=True)
        return [cls(trusted, 0, tokens[:trusted], [], {}) for tokens, trusted in rows]

    @classmethod
    def _unpack(
        cls, draft: Draft, row: int, packed: list[int], n: int, lossless: slice, kept_by: Mapping[str, slice]
    ) -> RowDecision:
        trusted, undecided, n_accepted = draft.trusted_in(row), draft.undecided_in(row), packed[0]
        if trusted and not undecided:
            return cls(trusted, 0, packed[2 : 2 + trusted], [], {})
        kept = packed[2 : min(n, 2 + trusted + n_accepted)]
        if draft.bonus or n_accepted < undecided:
            kept.append(packed[1])
        return cls(trusted, n_accepted, kept, packed[lossless], {rule: packed[at] for rule, at in kept_by.items()})


def charge_bits(decision: Decision) -> tuple[Tensor, ...]:
    """Return what a round charges as integers ``(B, 1)``, to go with others in one transfer; nothing for None."""
    return () if decision.charge is None else (decision.charge.unsqueeze(-1).view(torch.int32),)


def charge_of(decision: Decision, bits: int) -> float:
    """Return what these bits say; 0 where the round charges nothing."""
    return 0.0 if decision.charge is None else struct.unpack("f", struct.pack("i", bits))[0]
