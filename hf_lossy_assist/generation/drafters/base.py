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

from ...compat.caches import new_cache
from ...compat.drafters import drafts_from_target_states
from ...compat.multimodal import placeholders
from ...compat.probe import shares_forwards
from ...core.distributions import Randomness
from ...core.messages import Draft
from ...core.texts import Texts
from ...drafting import Drafter, PerRowDrafter
from ...drafting.chain import ChainDrafter, Sampler, Source, SourceDrafter
from ...drafting.draft_ends import DEFAULT_NUM_TOKENS, LONGEST, ConfidenceStop, DraftStop, fresh
from ...drafting.state_head import StateHead
from ...drafting.tree import TreeDrafter
from ...drafting.vocabulary import SAME, Vocabulary
from ...errors import LossyValueError
from ...models.cache_rows import movable
from ...models.runner import ModelRunner
from ...models.static.cache_slot import StaticCacheSlot
from ...models.static.fixed import FixedRunner
from ..config import LossyConfig
from ..prepared import Prepared


@dataclass(frozen=True, eq=False)
class Lengths:
    """How much is drafted in a round."""

    num_assistant_tokens: int  # γ; with 0, the target decodes alone in our loop and on our runners
    automatic: bool = False  # whether the user left γ to us
    confidence: float | None = None  # `assistant_confidence_threshold`, where set explicitly
    schedule: str = "constant"  # `num_assistant_tokens_schedule`
    stop: DraftStop | None = None  # ends drafts early, beside `confidence`


@dataclass(frozen=True, eq=False)
class Asked:
    """What a call says about its drafter, and what it wants of it."""

    target: PreTrainedModel
    config: LossyConfig
    lengths: Lengths  # as they are said
    assistant: Any = None  # `assistant_model`
    generator: CandidateGenerator | Callable[..., CandidateGenerator] | None = None  # `candidate_generator`
    options: Mapping[str, Any] = field(default_factory=dict)  # of transformers' own drafters, by field
    tokenizers: tuple[Any, Any] | None = None  # `tokenizer` and `assistant_tokenizer`, where they differ

    @cached_property
    def alone(self) -> Any:
        """The assistant, where nothing else drafts beside it."""
        return self.assistant if self.generator is None and not self.options else None

    @cached_property
    def draft(self) -> PreTrainedModel | None:
        """The model that drafts alone and by itself, if one does."""
        other = isinstance(self.alone, StateHead) or drafts_from_target_states(self.alone)
        return None if other else self.alone

    @property
    def keep_hidden(self) -> bool:
        """Whether the rule reads the states of a draft model."""
        return "draft_hidden" in self.config.rule.needs


@dataclass(frozen=True, eq=False)
class Making:
    """What a drafter is made from, besides what was asked for."""

    call: Prepared
    processors: LogitsProcessorList  # that the draft's logits go through
    randomness: Randomness
    runner: ModelRunner | None = None  # the draft model's; None for one of the source's own
    returned: bool = False  # whether the target's outputs have the states that a head on them reads
    whole: Prepared | None = None  # the call of which this is a row, if it is one

    def for_row(self, row: Prepared) -> Making:
        """Return the same for one row as a call of its own."""
        return replace(self, call=row, processors=row.processors, whole=self.call)

    def sampler(self) -> Sampler:
        """Return what chooses drafted tokens."""
        return Sampler(self.processors, self.call.config.do_sample, self.randomness, self.never)

    @property
    def never(self) -> Sequence[int]:
        """The tokens that stand for images and the like, which nobody drafts."""
        whole = self.whole or self.call
        return placeholders(whole.model, whole.inputs)


@dataclass(frozen=True, eq=False)
class StaticDraft:
    """How a drafter runs on a static cache."""

    runner: Callable[[StaticCacheSlot], FixedRunner]
    steps: tuple[int, ...] = ()  # over how many tokens its forwards are, while it drafts
    blocks: tuple[int, ...] = ()  # likewise, where one forward drafts them all
    reads_all: bool = False  # whether it reads all that a round has committed, and not only what it has not drafted
    masks: bool = False  # whether its masks are whole ones, so that trees need no forwards of their own
    vocabulary: Vocabulary = SAME
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
    cached
        The draft models whose caches have to follow the rows of a batch.
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
    cached: ClassVar[tuple[PreTrainedModel, ...]] = ()
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

    @cached_property
    def lengths(self) -> Lengths:
        """How much is drafted in a round, also where the user left that to us."""
        said = self.asked.lengths
        if not said.automatic:
            return said
        unsaid = said.schedule == "constant" and said.confidence is None and said.stop is None
        stop = self.asked.config.default_stop if unsaid and "stop" in self.gives else None
        gamma = DEFAULT_NUM_TOKENS if stop is None else LONGEST
        return replace(said, num_assistant_tokens=min(gamma, self.most or gamma), stop=stop or said.stop)

    @cached_property
    def longest(self) -> int | None:
        """The most tokens of a chain; None where that follows from what is kept."""
        return None if self.lengths.schedule.startswith("heuristic") else self.lengths.num_assistant_tokens

    @property
    def row_by_row(self) -> bool:
        """Whether the rows of a batch can't be decoded together."""
        target = self.asked.target
        return (
            target.config.is_encoder_decoder
            or self.follows_one_text
            or not all(shares_forwards(model) and movable(new_cache(model)) for model in (target, *self.cached))
        )

    def drafter(self, making: Making, source: Source, strategy: type[ChainDrafter] = ChainDrafter) -> SourceDrafter:
        """Return the strategy that drafts chains from a source, or trees where the call asks for them."""
        if (tree := self.asked.config.tree) is not None:
            return TreeDrafter(source, tree, making.sampler())
        call, needs = making.call, self.asked.config.rule.needs
        # Residuals and ratios need q; in greedy decoding only some rules read it.
        reads_q = call.config.do_sample or call.inspected or bool(needs & {"draft_probs", "draft_or_point_mass"})
        return self.chains(source, making.sampler(), reads_q, strategy)

    def chains(
        self, source: Source, sampler: Sampler, keep_logits: bool = True, strategy: type[ChainDrafter] = ChainDrafter
    ) -> ChainDrafter:
        """Return the strategy that drafts chains as long as the call and its models say."""
        lengths = self.lengths
        stop = ConfidenceStop(lengths.confidence) if lengths.confidence else fresh(lengths.stop)
        return strategy(source, lengths.num_assistant_tokens, sampler, keep_logits, stop, self.longest is None)

    def static(self, making: Making) -> StaticDraft | None:
        """Return what it needs to draft on static caches; None where it drafts on caches of its own."""
        return None


class PerRowKind(Kind):
    """Drafts for each row with a drafter of its own."""

    @abstractmethod
    def for_row(self, making: Making) -> Drafter:
        """Return the drafter of one row, which is a call of its own."""

    def make(self, making: Making) -> Drafter:
        call = making.call
        if call.batch == 1:
            return self.for_row(making)
        return PerRowDrafter([self.for_row(making.for_row(call.row(row))) for row in range(call.batch)])


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
    """Nothing drafts: `num_assistant_tokens` is 0, or the call names no drafter, which :meth:`check` refuses."""

    gives = frozenset({"static"})
    longest = 0

    @classmethod
    def chosen(cls, asked: Asked) -> Self | None:
        return None  # in place of any other

    def check(self) -> None:
        config, wanted = self.asked.config, []
        if self.lengths.num_assistant_tokens != 0:
            raise LossyValueError(
                f"`lossy_mode` {config.rule.name!r} needs a drafter; pass `assistant_model`, "
                "`prompt_lookup_num_tokens` or `candidate_generator`"
            )
        if config.rule.name != "lossless":
            wanted.append(f"take 'lossless' for `lossy_mode`, not {config.rule.name!r}")
        wanted += [
            f"leave out `{x}` in `lossy_config`" for x in ("tree", "stop_drafting") if getattr(config, x) is not None
        ]
        if wanted:
            raise LossyValueError(f"`num_assistant_tokens` is 0, so nothing is drafted: {', and '.join(wanted)}")

    def make(self, making: Making) -> Drafter:
        return NoDrafter()
