"""Drafts with transformers' candidate generators and users' own, which draft for one sequence each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.generation.candidate_generator import CandidateGenerator

from ..acceptors import Acceptor
from ..compat.drafters import DRAFTERS_WITHOUT_LOGITS
from ..core.distributions import point_mass
from ..core.messages import Commit, Draft, DraftCost
from ..core.texts import Texts
from ..errors import LossyValueError
from . import Drafter

_NEEDED = {"draft_probs": "distribution", "draft_hidden": "hidden states"}


class GeneratorDrafter(Drafter):
    """Drafts for one sequence with anything that follows transformers' ``CandidateGenerator`` contract.

    ``carried`` are the inputs that the target's forwards hand on, for generators that read them. With
    ``keep_hidden_states`` the caller wants all of the target's states, not only those that the generator reads. Drafts
    end before a token in ``never``.
    """

    def __init__(
        self,
        generator: CandidateGenerator,
        acceptor: Acceptor,
        carried: dict[str, Any],
        keep_hidden_states: bool = False,
        never: Sequence[int] = (),
    ) -> None:
        self.generator = generator
        self._never = torch.tensor(never)
        self.acceptor = acceptor
        self.drafts_every_round = generator.requires_model_outputs
        self._carried = carried
        self._wanted = {"output_hidden_states": True} if keep_hidden_states and self.drafts_every_round else {}
        self._outputs: Any = None
        self._accepted = 0

    def propose(self, ids: Tensor, layout: Texts, remaining: Sequence[int]) -> Draft:
        return self.ask(ids, remaining[0] - 1, **self._context())

    def ask(self, ids: Tensor, room: int, **context: Any) -> Draft:
        """Return the generator's proposal after ``ids`` ``(1, L)``, of up to ``room`` tokens."""
        if room <= 0:
            return Draft.empty(ids)
        generator = self.generator
        candidate, logits = generator.get_candidates(ids, **context)
        tokens = candidate[:, ids.shape[1] :][:, :room].to(ids.device)
        if len(self._never) and (found := torch.isin(tokens[0], self._never.to(ids.device))).any():
            tokens = tokens[:, : int(found.int().argmax())]
        if logits is not None:
            says_nothing = isinstance(generator, DRAFTERS_WITHOUT_LOGITS)
            logits = None if says_nothing else logits[:, : tokens.shape[1]].to(ids.device, torch.float32)
        if tokens.shape[1] and logits is None and "draft_probs" in self.acceptor.needs:
            raise missing("draft_probs", self.acceptor, type(generator).__name__)
        overrides = generator.model_kwargs_overrides if self.drafts_every_round else {}
        return Draft(tokens, logits, target_inputs={**overrides, **self._wanted})

    def observe(self, commit: Commit) -> None:
        self._accepted, self._outputs = commit.accepted[0], commit.outputs
        text = commit.ids[:, : commit.width].clone()
        self.generator.update_candidate_strategy(text, commit.logits, commit.accepted[0])

    def _context(self) -> dict[str, Any]:
        if not self.drafts_every_round:
            return {}
        return {
            "model_kwargs": self._carried,
            "model_outputs": self._outputs,
            "is_first_iteration": self._outputs is None,
            "n_last_matches": self._accepted,
        }


def missing(need: str, acceptor: Acceptor, drafter: str, remedy: str = "pass an `assistant_model`") -> LossyValueError:
    """Return the error for a rule that needs more than a drafter gives."""
    rule = next(rule for rule in getattr(acceptor, "rules", (acceptor,)) if need in rule.needs)
    settings = "".join(f'set `{key}="{value}"` in `lossy_config`, ' for key, value in rule.without_q.items())
    return LossyValueError(
        f"the rule {rule.name!r} needs the draft's {_NEEDED[need]}, but {drafter} gives none; {settings}{remedy}, or "
        "use a rule that reads the target alone, e.g. 'topk' or 'typical'"
    )


class PerRowDrafter(Drafter):
    """Gives every row a drafter of its own, which sees only that row's text."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self.drafters = drafters

    def propose(self, ids: Tensor, layout: Texts, remaining: Sequence[int]) -> Draft:
        texts = [ids[i : i + 1, padding:] for i, padding in enumerate(layout.left_padding)]
        drafters = [self.drafters[row] for row in layout.rows]
        drafts = [x.propose(text, layout, [room]) for x, text, room in zip(drafters, texts, remaining, strict=True)]
        return stacked(drafts, layout.pad)

    def observe(self, commit: Commit) -> None:
        for i, row in enumerate(commit.rows):
            self.drafters[row].observe(commit.of_row(i))


def stacked(drafts: Sequence[Draft], pad: int) -> Draft:
    """Return the drafts of single rows as one; where some know q, the others are point masses."""
    lengths = tuple(map(len, drafts))
    n = max(lengths)
    logits = [x.logits for x in drafts]
    if (known := next((x for x in logits if x is not None), None)) is not None:
        logits = [point_mass(x.tokens, known).log() if x.logits is None else x.logits for x in drafts]
    return Draft(
        _stacked([x.tokens for x in drafts], n, pad),
        _stacked(logits, n, 0.0),
        _stacked([x.hidden for x in drafts], n, 0.0),
        None if min(lengths) == n else lengths,
        cost=DraftCost(sum(x.cost.calls for x in drafts), sum(x.cost.tokens for x in drafts)),
    )


def _stacked(parts: Sequence[Tensor | None], n: int, fill: float) -> Tensor | None:
    """Stack ``(1, n_i, …)`` parts into ``(B, n, …)``; None where all are None."""
    given = next((part for part in parts if part is not None), None)
    if given is None:
        return None
    out = given.new_full((len(parts), n, *given.shape[2:]), fill)
    for i, part in enumerate(parts):
        if part is not None:
            out[i, : part.shape[1]] = part[0]
    return out
