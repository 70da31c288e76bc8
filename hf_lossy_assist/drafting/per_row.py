"""transformers' candidate generators and users' own, which draft for one sequence each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..acceptors import Acceptor
from ..commit import Commit
from ..compat import DRAFTERS_WITHOUT_LOGITS, CandidateGenerator
from ..errors import LossyValueError
from ..messages import Draft, DraftCost
from ..sampling import point_mass
from . import Drafter

if TYPE_CHECKING:
    from ..decoding.batch_layout import BatchLayout

_NEEDED = {"draft_probs": "distribution", "draft_hidden": "hidden states"}


class GeneratorDrafter(Drafter):
    """Drafts for one sequence with anything that follows transformers' ``CandidateGenerator`` contract.

    Parameters
    ----------
    generator
        The generator.
    acceptor
        The rule, which may need the draft's distribution.
    carried
        What the target's forwards carry from one to the next, for generators that look at it.
    keep_hidden_states
        Whether the caller wants all of the target's states, and not only those that the generator reads.
    """

    def __init__(
        self,
        generator: CandidateGenerator,
        acceptor: Acceptor,
        carried: dict[str, Any],
        keep_hidden_states: bool = False,
    ) -> None:
        self.generator = generator
        self.acceptor = acceptor
        self.drafts_every_round = generator.requires_model_outputs
        self._carried = carried
        self._wanted = {"output_hidden_states": True} if keep_hidden_states else {}
        self._outputs: Any = None
        self._accepted = 0
        self._counted = DraftCost()

    def propose(self, ids: Tensor, layout: BatchLayout, rooms: Sequence[int]) -> Draft:
        return self.ask(ids, rooms[0] - 1, **self._context())

    def ask(self, ids: Tensor, room: int, **context: Any) -> Draft:
        """Return the generator's proposal after ``ids`` ``(1, L)``, of up to ``room`` tokens."""
        if room <= 0:
            return Draft.empty(ids)
        candidate, logits = self.generator.get_candidates(ids, **context)
        if isinstance(self.generator, DRAFTERS_WITHOUT_LOGITS):
            logits = None
        tokens = candidate[:, ids.shape[1] :][:, :room].to(ids.device)
        n = tokens.shape[1]
        if n == 0:
            return Draft(tokens, cost=self._cost(), target_inputs=self._target_inputs())
        hidden = getattr(self.generator, "hidden", None)
        self._check(logits, hidden)
        return Draft(
            tokens,
            None if logits is None else logits[:, :n].to(device=tokens.device, dtype=torch.float32),
            hidden[:, :n].to(tokens.device) if "draft_hidden" in self.acceptor.needs else None,
            cost=self._cost(),
            target_inputs=self._target_inputs(),
        )

    def observe(self, commit: Commit) -> None:
        self.learn(commit, 0)

    def learn(self, commit: Commit, i: int) -> None:
        """Learn from what has become of the i-th row's draft."""
        self._accepted = commit.accepted[i]
        self._outputs = commit.verification.outputs
        scores = commit.verification.logits[i : i + 1]
        self.generator.update_candidate_strategy(commit.text(i).clone(), scores, commit.accepted[i])

    def _context(self) -> dict[str, Any]:
        if not self.drafts_every_round:
            return {}
        return {
            "model_kwargs": self._carried,
            "model_outputs": self._outputs,
            "is_first_iteration": self._outputs is None,
            "n_last_matches": self._accepted,
        }

    def _target_inputs(self) -> dict[str, Any]:
        return dict(self.generator.model_kwargs_overrides) | self._wanted if self.drafts_every_round else {}

    def _cost(self) -> DraftCost:
        """Return what the last proposal has cost, of a generator that counts."""
        before = self._counted
        self._counted = DraftCost(getattr(self.generator, "calls", 0), getattr(self.generator, "tokens", 0))
        return DraftCost(self._counted.calls - before.calls, self._counted.tokens - before.tokens)

    def _check(self, logits: Tensor | None, hidden: Tensor | None) -> None:
        for need, value in (("draft_probs", logits), ("draft_hidden", hidden)):
            if need in self.acceptor.needs and value is None:
                raise LossyValueError(
                    f"the rule {self.acceptor.name!r} needs the draft's {_NEEDED[need]}, but `candidate_generator` "
                    f"{type(self.generator).__name__} gives none; pass an `assistant_model`, or use a rule that reads "
                    "the target alone, e.g. 'topk', 'typical' or 'dropmatch' with criterion='naive'"
                )


class PerRowDrafter(Drafter):
    """A drafter of its own for every row, which sees that row's text.

    Parameters
    ----------
    make
        From a row's number to its drafter.
    batch
        Rows.
    """

    def __init__(self, make: Callable[[int], GeneratorDrafter], batch: int) -> None:
        self.drafters = [make(row) for row in range(batch)]

    def propose(self, ids: Tensor, layout: BatchLayout, rooms: Sequence[int]) -> Draft:
        texts = [ids[i : i + 1, padding:] for i, padding in enumerate(layout.left_padding)]
        drafters = [self.drafters[row] for row in layout.rows]
        drafts = [x.propose(text, layout, [room]) for x, text, room in zip(drafters, texts, rooms, strict=True)]
        lengths = tuple(map(len, drafts))
        n = max(lengths)
        known = next((x.logits for x in drafts if x.logits is not None), None)
        return Draft(
            _stacked([x.tokens for x in drafts], n, layout.pad),
            None if known is None else _stacked([_law(x, known) for x in drafts], n, 0.0),
            _stacked([x.hidden for x in drafts], n, 0.0),
            None if min(lengths) == n else lengths,
            cost=DraftCost(sum(x.cost.calls for x in drafts), sum(x.cost.tokens for x in drafts)),
        )

    def observe(self, commit: Commit) -> None:
        for i, row in enumerate(commit.rows):
            self.drafters[row].learn(commit, i)


def _law(draft: Draft, like: Tensor) -> Tensor:
    """Return a draft's logits; of one that has none, those that are certain of its tokens."""
    return point_mass(draft.tokens, like).log() if draft.logits is None else draft.logits


def _stacked(parts: Sequence[Tensor | None], n: int, fill: float) -> Tensor | None:
    """Stack ``(1, n_i, …)`` parts into ``(B, n, …)``; None where nobody has any."""
    given = next((part for part in parts if part is not None), None)
    if given is None:
        return None
    out = given.new_full((len(parts), n, *given.shape[2:]), fill)
    for i, part in enumerate(parts):
        if part is not None:
            out[i, : part.shape[1]] = part[0]
    return out
