"""The kinds of labels with their settings, as ``lossy-assist mine --labels`` writes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from ..errors import LossyValueError, nearest
from ..generation.spelling import read_settings, split
from ..models.quantised import quantize_draft
from ..values import BOOL, ONE_OR_MORE, POSITIVE, Checked, Rule, bounded, or_none
from .judge_labels import JudgeMiner
from .ratio_labels import RatioMiner
from .search import Chosen, Searches
from .self_labels import SelfSearches
from .writing import ApiWriter, LocalWriter, Writer

if TYPE_CHECKING:
    from .labelling import Labelling

_GREEDY_OR_DRAWN = or_none(POSITIVE, "None for greedy text")
_COUNT_OR_ALL = or_none(ONE_OR_MORE, "None for all")
_ROUNDED = Rule("int8, int4 or None", ("int8", "int4", None).__contains__)


@dataclass(frozen=True)
class Labels(Checked, ABC):
    """A kind of labels: its settings, and the miner that they describe."""

    name: ClassVar[str]
    kind: ClassVar[str]  # of the folder, and with it of the heads
    free: ClassVar[tuple[str, ...]] = ()  # settings that may change from run to run of a folder

    def check(self, labelling: Labelling) -> None:
        """Refuse labels that the target can't give."""
        if labelling.target is None:
            raise LossyValueError(
                f"`labels` {self.name!r} need the target's probabilities, but it is behind an API; give its "
                "`model`, or choose other labels"
            )

    def record(self) -> dict[str, Any]:
        """Return the settings that a continued run has to keep."""
        return {name: value for name, value in asdict(self).items() if name not in (*self.free, "temperature")}

    @abstractmethod
    def miner(self, labelling: Labelling) -> JudgeMiner | RatioMiner: ...


@dataclass(frozen=True)
class JudgeLabels(Labels):
    """Labels mismatches by whether the answer depends on them (AutoJudge).

    Parameters
    ----------
    temperature
        Responses are drawn at this temperature, by draws that depend on seed and prefix alone; greedy by default.
    mismatches
        About so many mismatches of each prompt are labelled, all by default.
    only_solved
        Prompts that the target answers wrongly get no labels.
    writer_dtype
        ``"int8"`` or ``"int4"``: a rounded copy of the target writes the responses; the states are its own.
    workers
        Threads for tasks that run programs or ask a server.
    """

    temperature: Annotated[float | None, _GREEDY_OR_DRAWN] = None
    mismatches: Annotated[int | None, _COUNT_OR_ALL] = None
    only_solved: Annotated[bool, Rule("true or false", BOOL.holds)] = False
    writer_dtype: Annotated[str | None, _ROUNDED] = None
    workers: Annotated[int, bounded(0, integer=True)] = 0

    name = kind = "judge"
    free = ("mismatches", "only_solved", "workers")

    def check(self, labelling: Labelling) -> None:
        if labelling.api is None:
            return
        for name in ("temperature", "writer_dtype"):
            if (value := getattr(self, name)) is not None:
                raise LossyValueError(
                    f"`{name}` is {value!r}, but a target behind an API writes its responses greedily; leave it out"
                )

    def miner(self, labelling: Labelling) -> JudgeMiner:
        tokenizer, task, slots = labelling.tokenizer, labelling.task, labelling.batch_size
        if labelling.api is not None:
            writer: Writer = ApiWriter(labelling.api, task, tokenizer, labelling.limits, slots)
        else:
            author = labelling.target
            if self.writer_dtype is not None:
                author = quantize_draft(author, self.writer_dtype)
            writer = LocalWriter(author, slots, labelling.limits, labelling.choice)
        decode = partial(tokenizer.decode, skip_special_tokens=True)
        guesses, chosen = labelling.guesses(), Chosen(self.mismatches, labelling.seed, self.only_solved)
        searches = Searches(writer, guesses, task, decode, slots, self.workers, chosen)
        return JudgeMiner(searches, labelling.models)


@dataclass(frozen=True)
class SelfLabels(Labels):
    """Labels mismatches by the target's likelihood of what follows (SelfJudge); see :class:`.SelfSearches`.

    Parameters
    ----------
    temperature
        As for :class:`JudgeLabels`.
    horizon
        So many tokens after a mismatch are compared.
    most_lost
        Nats per token that they may lose at a mismatch that does not matter.
    """

    temperature: Annotated[float | None, _GREEDY_OR_DRAWN] = None
    horizon: Annotated[int, ONE_OR_MORE] = 64
    most_lost: Annotated[float, bounded(0)] = 0.5

    name, kind = "self", "judge"

    def miner(self, labelling: Labelling) -> JudgeMiner:
        searches = SelfSearches(
            labelling.target, labelling.guesses(), labelling.limits, labelling.choice, labelling.batch_size,
            self.horizon, self.most_lost,
        )  # fmt: skip
        return JudgeMiner(searches, labelling.models)


@dataclass(frozen=True)
class RatioLabels(Labels):
    """Drafted tokens with their probabilities under both models (SPRINTER); see :class:`.RatioMiner`.

    Parameters
    ----------
    temperature
        The temperature of all draws.
    rows
        Drafted tokens per prompt, for each of the four kinds of prefix.
    """

    temperature: Annotated[float, POSITIVE] = 1.0
    rows: Annotated[int, ONE_OR_MORE] = 8

    name = kind = "ratio"

    def miner(self, labelling: Labelling) -> RatioMiner:
        return RatioMiner(
            labelling.target, labelling.draft, labelling.limits, labelling.choice, labelling.batch_size, self.rows
        )


KINDS: dict[str, type[Labels]] = {each.name: each for each in (JudgeLabels, SelfLabels, RatioLabels)}


def read_labels(text: str) -> Labels:
    """Read a kind of labels, ``KIND[:KEY=VALUE…]``.

    Examples
    --------
    >>> read_labels("judge:mismatches=8:only_solved=true").mismatches
    8
    """
    name, *settings = split(text, ":")
    if name not in KINDS:
        raise LossyValueError(f"`labels` has to be one of {[*KINDS]}, but is {name!r}{nearest(name, KINDS)}")
    given, known = read_settings(settings, "labels"), [each.name for each in fields(KINDS[name])]
    if unknown := [key for key in given if key not in known]:
        raise LossyValueError(
            f"`labels` {name} takes the settings {known}, but has {unknown[0]!r}{nearest(unknown[0], known)}"
        )
    return KINDS[name](**given)
