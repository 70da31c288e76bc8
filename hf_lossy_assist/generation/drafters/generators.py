"""Drafts with transformers' candidate generators and users' own, which draft for one sequence each."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor
from transformers.generation.candidate_generator import CandidateGenerator

from ...acceptors import Acceptor
from ...compat.drafters import DRAFTERS_WITHOUT_LOGITS, mtp_layers, several_or_sliding_mtp, transformers_drafter
from ...compat.models import has_recurrent_state
from ...core.messages import Commit, Draft
from ...core.texts import Texts
from ...drafting import Drafter
from ...errors import LossyUnsupportedError, LossyValueError
from .base import Asked, Making, PerRowKind, register


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
            raise missing_q(self.acceptor, type(generator).__name__)
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


def missing_q(acceptor: Acceptor, drafter: str, remedy: str = "pass an `assistant_model`") -> LossyValueError:
    """Return the error for a rule that needs a distribution of a drafter without one."""
    rule = next(rule for rule in getattr(acceptor, "rules", (acceptor,)) if "draft_probs" in rule.needs)
    settings = "".join(f'set `{key}="{value}"` in `lossy_config`, ' for key, value in rule.without_q.items())
    return LossyValueError(
        f"the rule {rule.name!r} needs the draft's distribution, but {drafter} gives none; {settings}{remedy}, or "
        "use a rule that reads the target alone, e.g. 'min_p' or 'typical'"
    )


class GeneratorKind(PerRowKind):
    """Drafts for each row with a generator of its own, which drafts any number of tokens."""

    longest = None

    @abstractmethod
    def generator(self, making: Making) -> CandidateGenerator:
        """Return what drafts for one row."""

    def for_row(self, making: Making) -> GeneratorDrafter:
        generator, rule, row = self.generator(making), self.asked.config.rule, making.call
        if "draft_probs" in rule.needs and isinstance(generator, DRAFTERS_WITHOUT_LOGITS):
            raise missing_q(rule, type(generator).__name__)
        if generator.requires_model_outputs and (whole := making.whole or row).batch > 1:
            raise LossyUnsupportedError(
                f"`candidate_generator` {type(generator).__name__} drafts from the states of one sequence, but the "
                f"batch has {whole.batch} rows; call generate() for one prompt at a time"
            )
        wants_states = bool(row.config.return_dict_in_generate and row.config.output_hidden_states)
        return GeneratorDrafter(generator, rule, row.inputs, wants_states, making.never)


@register
class OwnGenerator(GeneratorKind):
    """`candidate_generator` is a generator, or makes one for each row."""

    gives = frozenset({"q"})  # some do

    @classmethod
    def chosen(cls, asked: Asked) -> Self | None:
        return None if asked.generator is None else cls(asked)

    @property
    def title(self) -> str:
        return f"`candidate_generator` {type(self.asked.generator).__name__}"

    def check(self) -> None:
        if not isinstance(self.asked.generator, CandidateGenerator) and not callable(self.asked.generator):
            raise LossyValueError(
                "`candidate_generator` has to be a CandidateGenerator or a callable that returns one, but is "
                f"{self.asked.generator!r}"
            )

    def generator(self, making: Making) -> CandidateGenerator:
        found, row = self.asked.generator, making.call
        if not isinstance(found, CandidateGenerator):
            found = found(
                input_ids=row.ids,
                generation_config=row.config,
                logits_processor=row.processors,
                model_kwargs=row.inputs,
            )
            if not isinstance(found, CandidateGenerator):
                raise LossyValueError(
                    f"`candidate_generator` has to return a CandidateGenerator, but returned {found!r}"
                )
        return found


OPTIONS = ("prompt_lookup_num_tokens", "use_mtp", "speculation_type")
"""Fields by which transformers' ``generate()`` chooses one of its own drafters."""


class BuiltKind(GeneratorKind):
    """Drafts with what transformers' assisted generation would build for a row."""

    def generator(self, making: Making) -> CandidateGenerator:
        row, asked = making.call, self.asked
        config = copy.deepcopy(row.config)
        config.update(**dict.fromkeys(OPTIONS) | dict(asked.options))
        config.update(assistant_early_exit=None, num_assistant_tokens=self.lengths.num_assistant_tokens)
        return transformers_drafter(
            asked.target, assistant_model=asked.assistant, generation_config=config, input_ids=row.ids,
            inputs_tensor=row.ids, logits_processor=row.processors, model_kwargs=row.inputs,
        )  # fmt: skip


@register
class TransformersOwn(BuiltKind):
    """`speculation_type`, or `use_mtp` beside more than one layer of it, asks for a drafter of transformers."""

    gives = frozenset({"q"})
    follows_one_text = True

    @classmethod
    def chosen(cls, asked: Asked) -> Self | None:
        special = asked.generator is None and not {"speculation_type", "use_mtp"}.isdisjoint(asked.options)
        by_layer = asked.assistant is None and "speculation_type" not in asked.options
        ours = by_layer and special and not several_or_sliding_mtp(asked.target)
        return cls(asked) if special and not ours else None

    def check(self) -> None:
        options, target = self.asked.options, self.asked.target
        if options.get("speculation_type") and self.asked.assistant is None:
            raise LossyValueError(
                f"`speculation_type` {options['speculation_type']!r} needs its draft model as `assistant_model`"
            )
        if options.get("use_mtp") and not mtp_layers(target):
            raise LossyValueError(
                "`use_mtp` asks for the target's own MTP layers, but the configuration of this "
                f"{type(target).__name__} has none; pass `use_mtp=False`, so that `assistant_model` drafts"
            )
        if has_recurrent_state(target):
            raise LossyUnsupportedError(
                f"transformers' own drafter can't follow {type(target).__name__}, whose recurrent state has to be "
                "read again; pass an `assistant_model` without `use_mtp` and `speculation_type`, or `use_mtp` alone"
            )
        if options.get("prompt_lookup_num_tokens"):
            raise LossyUnsupportedError(
                "`prompt_lookup_num_tokens` drafts in the rounds that a draft model leaves out, but this drafter reads "
                "the target's states of every round; leave out either"
            )


@register
class Lookup(BuiltKind):
    """`prompt_lookup_num_tokens` alone: the text itself drafts."""

    gives = frozenset({"static"})

    @property
    def title(self) -> str:
        return "`prompt_lookup_num_tokens`"

    @classmethod
    def chosen(cls, asked: Asked) -> Self | None:
        alone = asked.assistant is None and asked.generator is None
        return cls(asked) if alone and asked.options.keys() == {"prompt_lookup_num_tokens"} else None

    @property
    def longest(self) -> int:
        return self.asked.options["prompt_lookup_num_tokens"]
