"""Drafts with transformers' candidate generators and users' own, which draft for one sequence each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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
from .model import ModelDrafter

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
        draft = self._allowed(self._draft(ids, room, context))
        for need, value in (("draft_probs", draft.logits), ("draft_hidden", draft.hidden)):
            if len(draft) and need in self.acceptor.needs and value is None:
                raise missing(need, self.acceptor, type(self.generator).__name__)
        return draft

    def _allowed(self, draft: Draft) -> Draft:
        if (
            not len(self._never)
            or not (found := torch.isin(draft.tokens[0], self._never.to(draft.tokens.device))).any()
        ):
            return draft
        end = int(found.int().argmax())
        values = {name: getattr(draft, name) for name in ("tokens", "logits", "hidden")}
        return replace(draft, **{name: None if x is None else x[:, :end] for name, x in values.items()})

    def _draft(self, ids: Tensor, room: int, context: Mapping[str, Any]) -> Draft:
        candidate, logits = self.generator.get_candidates(ids, **context)
        tokens = candidate[:, ids.shape[1] :][:, :room].to(ids.device)
        if logits is None or isinstance(self.generator, DRAFTERS_WITHOUT_LOGITS):
            logits = None
        else:
            logits = logits[:, : tokens.shape[1]].to(device=tokens.device, dtype=torch.float32)
        overrides = self.generator.model_kwargs_overrides if self.drafts_every_round else {}
        return Draft(tokens, logits, target_inputs={**overrides, **self._wanted})

    def observe(self, commit: Commit) -> None:
        self.learn(commit, 0)

    def learn(self, commit: Commit, i: int) -> None:
        """Learn from the round's decision about the i-th row."""
        self._accepted = commit.accepted[i]
        self._outputs = commit.outputs
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


def missing(need: str, acceptor: Acceptor, drafter: str, remedy: str = "pass an `assistant_model`") -> LossyValueError:
    """Return the error for a rule that needs more than a drafter gives."""
    rule = next(rule for rule in getattr(acceptor, "rules", (acceptor,)) if need in rule.needs)
    settings = "".join(f'set `{key}="{value}"` in `lossy_config`, ' for key, value in rule.without_q.items())
    return LossyValueError(
        f"the rule {rule.name!r} needs the draft's {_NEEDED[need]}, but {drafter} gives none; {settings}{remedy}, or "
        "use a rule that reads the target alone, e.g. 'topk' or 'typical'"
    )


class ModelRowDrafter(GeneratorDrafter):
    """Drafts for one sequence with a :class:`ModelDrafter`, which also gives states and costs."""

    generator: ModelDrafter

    def begin(self, ids: Tensor) -> None:
        self.generator.begin(ids)

    def _draft(self, ids: Tensor, room: int, context: Mapping[str, Any]) -> Draft:
        return self.generator.propose(ids, None, [min(room + 1, self.generator.max_length - ids.shape[1])])


def drafter_of(generator: CandidateGenerator, *args: Any, **kwargs: Any) -> GeneratorDrafter:
    """Return the drafter for one sequence with ``generator``; all else is as for :class:`GeneratorDrafter`."""
    kind = ModelRowDrafter if isinstance(generator, ModelDrafter) else GeneratorDrafter
    return kind(generator, *args, **kwargs)


class PerRowDrafter(Drafter):
    """Gives every row a drafter of its own, made from the row's number, which sees only that row's text."""

    def __init__(self, make: Callable[[int], GeneratorDrafter], batch: int) -> None:
        self.drafters = [make(row) for row in range(batch)]

    def propose(self, ids: Tensor, layout: Texts, remaining: Sequence[int]) -> Draft:
        texts = [ids[i : i + 1, padding:] for i, padding in enumerate(layout.left_padding)]
        drafters = [self.drafters[row] for row in layout.rows]
        drafts = [x.propose(text, layout, [room]) for x, text, room in zip(drafters, texts, remaining, strict=True)]
        return stacked(drafts, layout.pad)

    def observe(self, commit: Commit) -> None:
        for i, row in enumerate(commit.rows):
            self.drafters[row].learn(commit, i)


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
