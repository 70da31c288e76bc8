"""Advising: the target answers, both models read the answers, every rule replays; and what advice says of that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..acceptors import Acceptor
from ..acceptors.base import AUTO
from ..drafting.draft_ends import DEFAULT_NUM_TOKENS, LONGEST
from ..errors import LossyError, LossyUnsupportedError, LossyValueError, need
from ..generation.config import LossyConfig, head_users
from ..generation.lossy_call import LossyCall
from ..generation.spelling import Spelling, split
from ..pairs import Pair
from ..progress import track
from ..store.folder import MANIFEST, read_manifest, write_json
from ..tasks import Task
from ..tasks.prompts import PromptList
from ..values import check_name
from .answers import AnswerStore
from .evaluation import Evaluation
from .modes import EVERYTHING, DecodingMode, by_name, parse_modes
from .replay import TextLogits, Walk, greedy, processors_of, read_laws
from .requests import PromptBatch
from .speeds import Speeds, measure_costs, merged, spread_of
from .tables import NumberTable, as_text, figure, number, percent, table

MAX_NATS = 0.025
"""The largest loss of a recommended rule, in nats a token."""


@dataclass(frozen=True)
class Row:
    """What one rule brings with one draft length; in 95 % of cases, as many other prompts are within the bounds."""

    mode: str
    gamma: int | str  # a number, or auto
    kept: float  # drafted tokens per round
    tokens_per_call: float  # of the target
    times_lossless: float  # as fast as the best lossless setting
    low: float
    high: float
    times_alone: float  # as fast as the target alone
    others: float  # the share of the text's tokens that the lossless rule would have refused
    nats: float  # log p given up, per token of the text
    worst: float  # by one token, at most


@dataclass(frozen=True, eq=False)
class Replayed:
    """A mode's walks over the texts, by draft length."""

    mode: DecodingMode
    walks: Mapping[int | str, Walk]
    shown: tuple[int | str, ...] = ()  # the draft lengths that were asked for; empty for the best one


@dataclass(frozen=True, eq=False)
class Advice:
    """What rules bring on given models, texts and costs. Printed, or shown by a notebook, it is a table.

    Attributes
    ----------
    replayed
        The rules' walks, those of ``lossless`` first.
    speeds
        The texts, and the seconds of the steps of decoding.
    matches
        The share of positions at which the lossless rule keeps the draft's token.
    """

    replayed: Sequence[Replayed]
    speeds: Speeds
    matches: float

    def _fastest(self, walks: Mapping[int, Walk]) -> Walk:
        return min(walks.values(), key=lambda walk: self.speeds.seconds(walk).sum())

    @cached_property
    def _lossless(self) -> Walk:
        return self._fastest(self.replayed[0].walks)

    def row(self, one: Replayed, gamma: int | str | None = None) -> Row:
        """Return what a rule brings with drafts of ``gamma`` tokens; by default with its best ones."""
        walk = self._fastest(one.walks) if gamma is None else one.walks[gamma]
        total, rounds = self.speeds.tokens.sum(), walk.rounds.sum()
        times, low, high = self.speeds.times(walk, self._lossless)
        alone, *_ = self.speeds.times(walk, self.speeds.alone)
        return Row(
            one.mode.label, walk.gamma, float(walk.kept.sum() / rounds), float(total / rounds), times, low, high,
            alone, float(walk.others.sum() / total), float(walk.nats.sum() / total), float(walk.worst.max()),
        )  # fmt: skip

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """A row for each rule with its best draft length, or with each that was asked for; the slowest rule first."""
        rows = [self.row(one, gamma) for one in self.replayed for gamma in one.shown or (None,)]
        return tuple(sorted(rows, key=lambda row: (row.mode == EVERYTHING, row.mode != "lossless", row.times_lossless)))

    @cached_property
    def front(self) -> tuple[Row, ...]:
        """The rows that gain, and than which no other loses less and gains as much."""
        rules = [row for row in self.rows if row.mode != EVERYTHING and row.times_lossless > 1]
        points = [(row.nats, -row.times_lossless) for row in rules]
        return tuple(
            row
            for row, own in zip(rules, points, strict=True)
            if not any(other != own and other[0] <= own[0] and other[1] <= own[1] for other in points)
        )

    @cached_property
    def ceiling(self) -> Row:
        """The row that keeps everything: no rule is faster."""
        return self.row(next(one for one in self.replayed if one.mode.label == EVERYTHING))

    def best(self, mode: str | None = None) -> Recommendation:
        """Return the fastest setting: of one rule, or of all but ``everything`` that lose at most 0.025 nats a token.

        No rule is recommended whose interval does not lie above the speed of ``lossless``, and no draft where drafting
        does not pay: the target alone is the setting then.

        Parameters
        ----------
        mode
            A rule as it stands in the table; any by default.

        Raises
        ------
        LossyValueError
            If the table has no such rule.
        """
        by_label = {one.mode.label: one for one in self.replayed}
        if mode is not None:
            check_name("mode", mode, by_label)
            row = max((row for row in self.rows if row.mode == mode), key=lambda row: row.times_lossless)
        else:
            rows = [row for row in self.rows if row.mode != EVERYTHING and row.nats <= MAX_NATS]
            row = max(rows, key=lambda row: row.times_lossless)
            row = row if row.low > 1 else self.row(self.replayed[0])
            if row.times_alone <= 1:
                return Recommendation(None, DecodingMode("plain"))
        return Recommendation(row, replace(by_label[row.mode].mode, gamma=row.gamma))

    @property
    def how_sure(self) -> str:
        """Why :meth:`best` is what it is, and how sure that is."""
        best, own = self.best(), self.speeds.times(self._lossless, self.speeds.alone)
        if best.row is None:
            why = f"drafting makes it {own:.2f} × as fast"
        elif best.row.low > 1:
            why = f"{best.row.times_lossless:.2f} ({best.row.low:.2f} to {best.row.high:.2f}) × as fast as lossless"
        else:
            why = f"{own:.2f} × the target alone, and no rule is surely faster"
        seen = f"in {len(self.speeds.repeats)} repeats {spread_of(self.speeds.repeats)[1]}"
        return why if self.speeds.steady else f"{why}. Little is sure, since {seen}: repeat it on an idle machine"

    @property
    def said(self) -> list[str]:
        """The costs, what the draft is worth, and the verdict, in sentences."""
        speeds, own = self.speeds, self._lossless
        one, six, more = (figure(1000 * speeds.costs.read(n)) for n in (1, 6, 17))
        times, low, high = speeds.times(own, speeds.alone)
        drafts = "default drafts" if own.gamma == AUTO else f"γ = {own.gamma}"
        return [
            (
                f"The target takes {one} ms over 1 token, {six} over 6, {more} over 17; a drafted token takes "
                f"{figure(1000 * speeds.costs.drafted)}, {speeds.costs.share:.2f} of the first."
            ),
            (
                f"{len(speeds.tokens)} answers of the target, {int(speeds.tokens.sum()):,} tokens: lossless would keep "
                f"{percent(self.matches, 1)} % of the draft's."
            ),
            (
                f"Lossless with {drafts} is {times:.2f} × the target alone ({low:.2f} … {high:.2f})"
                + ("." if times > 1 else ": drafting does not pay here.")
            ),
            f"With this draft no rule is more than {self.ceiling.times_lossless:.2f} × as fast as lossless.",
            f"Recommended for speed: {self.best()}: {self.how_sure}.",
            "All this is worked out off-line, along the target's own texts: tokens a call, times the seconds of a call"
            + ("." if speeds.costs.clock == "wall" else ", in computing time of one thread, which is steadier here."),
        ]  # fmt: skip

    def next_step(self, options: str = "…") -> str:
        """Say which modes to measure next, and why; ``options`` name models and prompts."""
        few = sorted(self.front, key=lambda row: row.times_lossless)[-3:]
        modes = ["plain", f"lossless@{self._lossless.gamma}", *(with_gamma(row.mode, row.gamma) for row in few)]
        return (
            "What other tokens do to answers is not known here, nor are rules that look at whole drafts or at states, "
            "nor other drafters: measure a dozen prompts. "
            f"Next: lossy-assist evaluate {options} --modes {','.join(modes)}"
        )

    def table(self) -> NumberTable:
        """Lay out the rows."""
        front = set(self.front)
        columns: dict[str, Any] = {
            "  rule": lambda row: f"{'*' if row in front else ' '} {row.mode}",
            "γ": lambda row: str(row.gamma),
            "kept": lambda row: number(row.kept),
            "× lossless (95 %)": lambda row: f"{row.times_lossless:.2f} ({row.low:.2f} … {row.high:.2f})",
            "other\n(%)": lambda row: percent(row.others, 1),
            "nats": lambda row: f"{row.nats:.3f}",
            "worst": lambda row: f"{row.worst:.1f}",
        }
        return table(self.rows, columns, "What each rule brings")

    def __str__(self) -> str:
        return "\n".join([*self.said, as_text(self.table())])

    __repr__ = __str__

    @property
    def entry(self) -> dict[str, Any]:
        """What ``advice.json`` has."""
        return {
            "rows": [asdict(row) for row in self.rows],
            "front": [with_gamma(row.mode, row.gamma) for row in self.front],
            "costs": self.speeds.entry, "steady": self.speeds.steady,
            "recommended": str(self.best()), "how_sure": self.how_sure,
            "answers": len(self.speeds.tokens), "tokens": int(self.speeds.tokens.sum()),
            "matches": self.matches, "ceiling": self.ceiling.times_lossless, "said": self.said,
        }  # fmt: skip


def with_gamma(mode: str, gamma: int | str) -> str:
    """Return a mode as it is spelt with a draft length."""
    return str(replace(Spelling.read(mode), gamma=gamma))


@dataclass(frozen=True)
class Recommendation:
    """A setting, and what it is expected to bring."""

    row: Row | None  # of the table; None for the target alone
    mode: DecodingMode

    def __str__(self) -> str:
        return "plain, without a draft" if self.row is None else with_gamma(self.row.mode, self.row.gamma)

    @property
    def settings(self) -> dict[str, Any]:
        """Keywords for ``generate()``, ``pipeline`` and ``GenerationConfig``; an assistant is given besides."""
        return {"do_sample": False, **{key: x for key, x in self.mode.config.items() if x != {}}}


GAMMAS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32)
"""Draft lengths among which each rule's best is looked for."""

TIMED, REPEATS = (1, 5, 16, 32), 3
"""The draft lengths that are timed, and how often."""

RULES = "near_top,min_p,margin,topk,typical,relaxed:top_n=2:delta=0.2,fsd,lenience,ensemble"
"""The rules that are compared by default; ``lossless`` and ``everything`` always are."""

MEASURE = "measure a dozen prompts with `evaluate` instead"


def target_alone(
    pair: Pair, prompts: Task | Sequence[Any], out: Path | None = None, *, limit: int | None = None, **others: Any
) -> Evaluation:  # fmt: skip
    """Return the evaluation in which the target answers greedily, as the folder ``out`` has it if one is there.

    A folder has the texts of the target alone, with which `evaluate` compares. Without one the target drafts
    losslessly, which is faster. Of a task there are 12 answers by default.
    """
    prompts = [prompts] if isinstance(prompts, str) else prompts
    task = prompts if isinstance(prompts, Task) else PromptList(prompts)
    usual, kept, mode = 12 if task is prompts else len(prompts), {}, DecodingMode("plain")
    if out is None:
        mode = replace(mode, label="lossless", rule="lossless", gamma=DEFAULT_NUM_TOKENS)
    elif (out / MANIFEST).exists():
        plan = read_manifest(out, AnswerStore.command, AnswerStore.kinds, "out")
        kept = {name: plan[name] for name in ("batch_size", "seed")}
    # Nobody would read scores without a folder, and one may take a program's run.
    judged = out is not None
    limit = usual if limit is None else limit
    return Evaluation(replace(pair, task=task), [mode], mode.label, limit, judged=judged, **kept, **others)


@dataclass(frozen=True, eq=False)
class Advising:
    """What advice is about: the target's answers to prompts, and rules."""

    evaluation: Evaluation  # of :func:`target_alone`
    modes: str = ""
    out: Path | None = None  # a folder of answers, which an interrupted run goes on with

    def __post_init__(self) -> None:
        kind = self._call_of(self.evaluation.modes[0]).kind
        if not kind.cached or self.pair.lookup:
            raise LossyUnsupportedError(f"`advise` replays drafts of a draft model alone; of others, {MEASURE}")
        if kind.lengths.confidence or kind.lengths.schedule != "constant":
            raise LossyUnsupportedError(
                "`assistant_confidence_threshold` or `num_assistant_tokens_schedule` is set in the models' "
                f"`generation_config`, but `advise` does not replay them; set both to None, or {MEASURE}"
            )

    @property
    def pair(self) -> Pair:
        return self.evaluation.pair

    def _call_of(self, mode: DecodingMode) -> LossyCall:
        """Return the call of a mode, which raises where it can't run."""
        mode = replace(mode, rule=mode.rule or "lossless", gamma=mode.gamma or 1)
        return LossyCall.from_keywords(self.pair.target, mode.keywords(self.pair, 0))

    def run(self) -> Advice:
        """Let the target answer, read the answers, time the models, and replay every rule."""
        rules, laws = self.rules, self.laws  # what is wrong with rules is said first
        tokens = laws.lengths.double().numpy()
        length = float(np.mean([batch.ids.shape[1] for batch in self.batches]) + tokens.mean() / 2)
        repeats = measure_costs(self.pair, self.batches[0].ids[0].tolist(), round(length), TIMED, REPEATS)
        walks = (self.replay(mode, rule) for mode, rule in rules)
        replayed = [*track(walks, total=len(rules), what="replaying")]
        matches = float(greedy(rules[0][1], laws).keep[laws.real.numpy()].mean())
        advice = Advice(replayed, Speeds(tokens, merged(repeats), repeats), matches)
        if self.out is not None:
            write_json(self.out / "advice.json", advice.entry)
            GenerationConfig(**advice.best().settings).save_pretrained(self.out)
        return advice

    @cached_property
    def batches(self) -> list[PromptBatch]:
        return replace(self.evaluation, batch_size=1).batches  # one prompt each

    @cached_property
    def laws(self) -> TextLogits:
        """What both models say along the target's answers, which are made now."""
        evaluation, pair = self.evaluation, self.pair
        store = AnswerStore() if self.out is None else AnswerStore(self.out, evaluation.plan())
        answered, texts = track(evaluation.run(store), total=len(self.batches), what="answering"), []
        for batch, answers in zip(self.batches, answered, strict=True):
            prompt, answer = batch.ids[0].tolist(), evaluation.tokens_of(answers[evaluation.reference])
            texts.append(read_laws(pair.target, pair.draft, prompt, answer, processors_of(pair.target, prompt)))
        return TextLogits.of(texts, evaluation.length)

    @cached_property
    def rules(self) -> list[tuple[DecodingMode, Acceptor]]:
        """The modes and their rules, ``lossless`` first; a mode's draft lengths are those to show."""
        texts = [by_name(text.strip()) for text in split(self.modes or RULES, ",")]
        found = {}
        for text in dict.fromkeys(("lossless", *texts, EVERYTHING)):
            (mode,) = parse_modes(text, None)
            if mode.rule is None:
                raise LossyValueError(
                    f"`modes` has to name rules, but has {text!r}; the target alone is in every table"
                )
            config = None if head_users(mode.rule) else mode.run({})
            rule = config and config.rule
            if config is None or (
                rule.needs - {"draft_probs", "draft_or_point_mass"} or rule.unverified_drafting is not None
                or config != LossyConfig(rule) or rule.reads_draft
            ):  # fmt: skip
                raise LossyUnsupportedError(
                    f"`modes` has {text!r}, but only rules that judge position by position, by both models' laws, are "
                    f"replayed, in chains and without limits; {MEASURE}"
                )
            try:
                self._call_of(mode)
            except LossyError:
                if self.modes:
                    raise
                continue  # a usual rule that does not go with this draft
            label = str(replace(Spelling.read(text, "modes"), gamma=None))
            known = found.get(label, (mode, rule, ()))[2]
            found[label] = replace(mode, label=label), rule, (*known, *filter(None, [mode.gamma]))
        return [(replace(mode, gamma=shown), rule) for mode, rule, shown in found.values()]

    def replay(self, mode: DecodingMode, rule: Acceptor) -> Replayed:
        """Walk along the answers as a rule would, with drafts of every length."""
        shown = mode.gamma or ()
        decided = greedy(rule, self.laws)
        walks = {gamma: decided.walk(self.laws, gamma) for gamma in {*GAMMAS, *shown} - {AUTO}}
        walks[AUTO] = replace(decided.walk(self.laws, LONGEST, rule.drafts_until), gamma=AUTO)
        return Replayed(replace(mode, gamma=None), walks, tuple(shown))


def advise(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Task | Sequence[Any],
    *,
    modes: str | None = None,
    limit: int | None = None,
    split: str = "test",
    max_new_tokens: int | None = None,
    out: str | Path | None = None,
) -> Advice:
    """Predict how fast rules would be in greedy decoding with these models, here, and what they would change.

    The target answers the prompts. Each model reads the answers once, and every rule decides along them: a token that
    it keeps in place of the target's own counts as the target's. So rounds, kept tokens and the best draft length
    follow for each rule. The speed follows from rounds that are timed here. Only rules that judge position by position
    can be replayed, and only drafts of a draft model; for others, measure a dozen prompts with
    :func:`~hf_lossy_assist.evaluate`.

    Parameters
    ----------
    target, draft, tokenizer
        The models, which share the tokenizer.
    prompts
        A task, or a text or several, or lists of token ids, like those that the models will get; with a chat template,
        a text is the user's turn.
    modes
        ``"RULE[+RULE][@GAMMA][:KEY=VALUE…],…"``; the usual rules by default. A rule without a draft length has its best
        one: a number or auto, for drafts that end by default.
    limit, split
        The number of prompts, 12 of a task by default, and the task's split.
    max_new_tokens
        The longest answer; the task's by default, and 256 without one.
    out
        A folder for ``advice.json`` and the answers, with which an interrupted run goes on.
        :func:`~hf_lossy_assist.evaluate` reads and writes the same answers, those of the target alone.

    Raises
    ------
    LossyValueError
        When an argument can't work; before any forward pass.
    LossyUnsupportedError
        When a rule or the draft can't be replayed, or the extra ``lab`` is missing.

    Examples
    --------
    >>> import hf_lossy_assist
    >>> from hf_lossy_assist import pairs
    >>> pair = pairs.load("arithmetic")
    >>> prompts = [problem.prompt for problem in pair.task.examples("test", 2)]
    >>> advice = hf_lossy_assist.advise(pair.target, pair.draft, pair.tokenizer, prompts, modes="min_p@5,typical@5")
    >>> advice.best("typical").settings
    {'do_sample': False, 'lossy_mode': 'typical', 'num_assistant_tokens': 5}
    """
    need("lab", "`advise`")
    folder = None if out is None else Path(out)
    evaluation = target_alone(
        Pair(target, draft, tokenizer), prompts, folder, limit=limit, split=split, max_new_tokens=max_new_tokens
    )
    return Advising(evaluation, modes or "", folder).run()
