"""What a drafter says about itself, so that calls, batches, refusals and statistics follow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

from torch import Tensor, nn
from transformers import LogitsProcessorList, PreTrainedModel
from transformers.generation.candidate_generator import CandidateGenerator

from ...compat.drafters import drafts_from_target_states
from ...compat.multimodal import placeholders
from ...core.distributions import Randomness
from ...core.messages import Draft
from ...core.texts import Texts
from ...drafting import Drafter
from ...drafting.chain import ChainDrafter, Sampler, Source
from ...drafting.draft_ends import ConfidenceStop, DraftStop, draft_length_of, fresh
from ...drafting.state_head import StateHead
from ...drafting.vocabulary import Vocabulary
from ...models.runner import ModelRunner
from ...models.static.cache_slot import StaticCacheSlot
from ...models.static.fixed import FixedRunner
from ..config import LossyConfig
from ..prepared import Prepared


@dataclass(frozen=True, eq=False)
class Asked:
    """What a call says about its drafter."""

    target: PreTrainedModel
    assistant: Any = None  # `assistant_model`
    generator: CandidateGenerator | Callable[..., CandidateGenerator] | None = None  # `candidate_generator`
    options: Mapping[str, Any] = field(default_factory=dict)  # of transformers' own drafters, by field
    tokenizers: tuple[Any, Any] | None = None  # `tokenizer` and `assistant_tokenizer`, where they differ

    def without(self, *options: str) -> Asked:
        return replace(self, options={name: x for name, x in self.options.items() if name not in options})

    @cached_property
    def alone(self) -> Any:
        """The assistant, where nothing else drafts beside it."""
        return self.assistant if self.generator is None and not self.options else None

    @cached_property
    def draft(self) -> PreTrainedModel | None:
        """The model that drafts alone and by itself, if one does."""
        other = isinstance(self.alone, StateHead) or drafts_from_target_states(self.alone)
        return None if other else self.alone


@dataclass(frozen=True, eq=False)
class Lengths:
    """How much is drafted in a round."""

    num_assistant_tokens: int  # γ; with 0, the target decodes alone in our loop and on our runners
    automatic: bool = False  # whether the user left γ to us
    confidence: float | None = None  # `assistant_confidence_threshold`, where set explicitly
    schedule: str = "constant"  # `num_assistant_tokens_schedule`
    stop: DraftStop | None = None  # ends drafts early, beside `confidence`


@dataclass(frozen=True, eq=False)
class Making:
    """What a drafter is made from, besides its kind."""

    call: Prepared
    config: LossyConfig
    lengths: Lengths
    processors: LogitsProcessorList  # that the draft's logits go through
    randomness: Randomness
    runner: ModelRunner | None = None  # the draft model's; None for one of the source's own
    returned: bool = False  # whether the target's outputs have the states that a head on them reads
    whole: Prepared | None = None  # the call of which this is a row, if it is one

    def for_row(self, row: Prepared) -> Making:
        """Return the same for one row as a call of its own."""
        return replace(self, call=row, processors=row.processors, whole=self.call)

    @property
    def keep_hidden(self) -> bool:
        """Whether the rule reads the states of a draft model."""
        return "draft_hidden" in self.config.rule.needs

    def sampler(self) -> Sampler:
        """Return what chooses drafted tokens."""
        call, whole = self.call, self.whole or self.call
        never = placeholders(whole.model, whole.inputs)
        return Sampler(self.processors, call.config.do_sample, self.randomness, never)

    def chain(self, source: Source, strategy: type[ChainDrafter] = ChainDrafter) -> ChainDrafter:
        """Return the strategy that drafts chains from a source."""
        call, lengths, needs = self.call, self.lengths, self.config.rule.needs
        return strategy(
            source,
            draft_length_of(lengths.num_assistant_tokens, lengths.schedule),
            self.sampler(),
            # Residuals and ratios need q; in greedy decoding only some rules read it.
            call.config.do_sample or call.inspected or bool(needs & {"draft_probs", "draft_or_point_mass"}),
            fresh(lengths.stop) if not lengths.confidence else ConfidenceStop(lengths.confidence),
        )


@dataclass(frozen=True, eq=False)
class StaticDraft:
    """How a drafter runs on a static cache."""

    runner: Callable[[StaticCacheSlot], FixedRunner]
    steps: tuple[int, ...] = ()  # over how many tokens its forwards are, while it drafts
    blocks: tuple[int, ...] = ()  # likewise, where one forward drafts them all
    reads_all: bool = False  # whether it reads all that a round has committed, and not only what it has not drafted
    masks: bool = False  # whether its masks are whole ones, so that trees need no forwards of their own
    vocabulary: Vocabulary | None = None
    obstacle: str | None = None  # why it can't


@dataclass(frozen=True, eq=False)
class Kind(ABC):
    """A kind of drafter: when a call chooses it, what it gives, what it refuses, and how it is made.

    Subclass it in a file of this folder, under :func:`register`; calls, batches, refusals and statistics follow.

    Attributes
    ----------
    gives
        What it can do of: ``"q"`` a distribution, ``"hidden"`` the states of a draft model, ``"unverified"`` tokens
        that a head on these judges, ``"tree"``, ``"stop"`` drafts that end early, ``"static"`` let the target run on a
        static cache, ``"certificate"`` be named in one.
    remedy
        What an error advises where it lacks something.
    compares
        Whether a rule's trained head has to belong to the model that drafts.
    follows_one_text
        Whether it can draft for the rows of a batch only one after another.
    most
        The most tokens of a draft, where there is a bound.
    looked_up
        How many tokens of the text itself it may draft.
    reads
        Which layers' states of the target it reads, after every round.
    """

    asked: Asked
    gives: ClassVar[frozenset[str]] = frozenset()
    remedy: ClassVar[str] = "pass an `assistant_model`"
    compares: ClassVar[bool] = True
    follows_one_text: ClassVar[bool] = False
    most: ClassVar[int | None] = None
    looked_up: ClassVar[int] = 0
    reads: ClassVar[tuple[int, ...]] = ()

    @classmethod
    @abstractmethod
    def chosen(cls, asked: Asked) -> Self | None:
        """Return the drafter that a call asks for, if it is of this kind."""

    @abstractmethod
    def make(self, making: Making) -> Drafter:
        """Return the drafter of a call with all its rows."""

    def check(self) -> None:
        """Raise where it can't draft for the target."""
        return

    @property
    def title(self) -> str:
        """What errors call it."""
        return f"a {type(self.asked.assistant).__name__}"

    @cached_property
    def model(self) -> nn.Module | None:
        """The model or head that drafts."""
        return self.asked.assistant

    @property
    def cached(self) -> tuple[PreTrainedModel, ...]:
        """The draft models whose caches have to follow the rows of a batch."""
        return ()

    def longest(self, constant: int | None) -> int | None:
        """Return the most tokens of a chain, where that is known; γ is ``constant``, or None if it adapts."""
        return None

    def static(self, making: Making) -> StaticDraft | None:
        """Return what it needs to draft on static caches; None where it drafts on caches of its own."""
        return None


KINDS: list[type[Kind]] = []
"""All kinds; a call is of one."""


def register(kind: type[Kind]) -> type[Kind]:
    """Add a kind."""
    KINDS.append(kind)
    return kind


def chosen(asked: Asked) -> Kind | None:
    """Return the drafter that a call asks for; None where it asks for none."""
    for each in KINDS:
        if (kind := each.chosen(asked)) is not None:
            return kind
    return None


class NoDrafter(Drafter):
    """Proposes nothing, so every round writes a token of the target's own."""

    def propose(self, ids: Tensor, layout: Texts, remaining: Sequence[int]) -> Draft:
        return Draft.empty(ids)


class Nothing(Kind):
    """Nothing is drafted, because `num_assistant_tokens` is 0. The length chooses it, and no drafter of the call."""

    gives = frozenset({"static"})

    @classmethod
    def chosen(cls, asked: Asked) -> Self | None:
        return None

    def longest(self, constant: int | None) -> int:
        return 0

    def make(self, making: Making) -> Drafter:
        return NoDrafter()
