"""Advising: the target answers, both models read, and every rule replays."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from ...acceptors import Acceptor
from ...acceptors.base import AUTO
from ...drafting.draft_ends import DEFAULT_NUM_TOKENS, LONGEST
from ...drafting.per_row import missing
from ...drafting.state_head import StateHead
from ...errors import LossyError, LossyUnsupportedError, LossyValueError, need
from ...generation.certificate import GENERATION_CONFIG
from ...generation.config import LossyConfig
from ...generation.lossy_call import LossyCall
from ...generation.spelling import Spelling, split
from ...heads import Head
from ...models.lm_head_hook import DROPOUTS, POSITIONS, choose_dropout
from ...models.reading import read_text
from ...store.folder import MANIFEST, write_json
from ...tasks import Task
from ...values import ONE_OR_MORE, Rule
from ..answers import read_plan
from ..costs import FREE, KEEP_ALL, Costs, merged, repeated_costs
from ..costs import GAMMAS as TIMED
from ..evaluation import Evaluation, Track, progress_bar
from ..modes import EVERYTHING, DecodingMode, Models, parse_modes
from ..quality import Interval
from ..requests import PromptList, Prompts, run_request
from .advice import DRAFT_COST, Advice, Replayed, Row
from .answer_texts import AnswerTexts
from .drawing import draw
from .lookup_first import LookupFirstLogits
from .replay import Acceptance, Walk, decided, drawn, greedy, reads_states, rounds
from .speeds import Speeds, Trial
from .text_logits import TextLogits

if TYPE_CHECKING:
    from .outcomes import Labelled

GAMMAS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32)
"""Draft lengths among which each rule's best is looked for."""

STEPS = 16
"""The longest drafts of heads on the target's states, and of others whose laws depend on where a draft began."""

GREEDY = "near_top,min_p,regret,margin,topk,typical,relaxed:top_n=2:delta=0.2,fsd,fly,lenience,ensemble"
"""The rules that are compared by default in greedy decoding; ``lossless`` and ``everything`` always are."""

SAMPLED = "ears,ears:beta=0.5,ears:beta=1.0,cactus:delta=0.01,cactus,cactus:delta=1.0,near_top"
SAMPLED += ",near_top:alpha=0.75,lenience,ensemble,typical,topk,min_p"
"""The same when sampling."""

_GAMMAS = Rule("a list of different ints from 1 to 64", lambda x: len({*x}) == len([*x]) and all(
    type(gamma) is int and 1 <= gamma <= 64 for gamma in x
))  # fmt: skip


def target_alone(
    models: Models, tokenizer: PreTrainedTokenizerBase, prompts: Task | Prompts, out: Path | None = None, *,
    limit: int | None = None, temperature: float | None = None, top_p: float = 1.0, measure: str | None = None,
    batch_size: int = 1, **others: Any,
) -> Evaluation:  # fmt: skip
    """Return the evaluation in which the target answers, as the folder ``out`` has it if one is there.

    A new folder gets the texts of the target alone, with which `evaluate` compares. A folder that compares with
    ``lossless`` has the target's texts under that mode. Without a folder the target drafts losslessly, which is faster.
    Of a task there are 12 answers by default, or those of four batches.
    """
    task = prompts if isinstance(prompts, Task) else PromptList(prompts)
    limit = limit or (len(prompts) if task is not prompts else 12 if batch_size <= 1 else 4 * batch_size)
    mode = DecodingMode("plain", temperature=temperature, top_p=top_p)
    kept = {"measure": out and measure, "batch_size": batch_size}
    if out is None:
        mode = replace(mode, label="lossless", rule="lossless", gamma=DEFAULT_NUM_TOKENS)
    elif (out / MANIFEST).exists():
        manifest = read_plan(out, "out")
        names = ("batch_size", "clock", "measure", "repeats", "stages")
        kept = {name: manifest[name] for name in names if name in manifest}
        label = manifest["reference"]
        config = manifest["modes"].get(label, {})
        if config.get("lossy_mode") == "lossless":
            gamma = config["num_assistant_tokens"]
            mode = replace(mode, label=label, rule="lossless", settings=config["lossy_config"], gamma=gamma)
    return Evaluation(models, tokenizer, task, [mode], mode.label, limit, **kept, **others)


@dataclass(frozen=True, eq=False)
class Advising:
    """What advice is about: the target's answers to prompts, and rules."""

    evaluation: Evaluation  # of :func:`target_alone`
    modes: str = ""
    gammas: tuple[int, ...] = ()
    draft_cost: float | None = None  # a drafted token's share of a target's token; measured by default
    tune: bool = False
    rows: int = 1  # how many prompts are decoded together
    guard: int = 8  # on how many prompts, at least, the recommended setting and its neighbours run
    out: Path | None = None  # a folder of answers, which an interrupted run goes on with
    labels: str | Path | None = None  # a folder of `mine --labels judge`, by which answers lost and won are predicted
    track: Track = field(default=lambda items, **_: items)

    def __post_init__(self) -> None:
        _GAMMAS.check("gammas", self.gammas)
        if self.draft_cost is not None:
            DRAFT_COST.check("draft_cost", self.draft_cost)
        if self._looks_up_first and self.rows > 1:
            raise LossyUnsupportedError(
                f"`batch_size` is {self.rows}, but look-up before a draft is replayed for single texts only, since the "
                "rows of a batch decide together; compare by `lossy-assist evaluate`"
            )
        if self.rows > 1 and (count := len(self.evaluation.examples)) < 2 * self.rows:
            raise LossyValueError(
                f"`batch_size` has to be at most half the number of prompts, {count}, but is {self.rows}; give more of "
                "them, or raise `limit`"
            )

    @property
    def models(self) -> Models:
        return self.evaluation.models

    @cached_property
    def _call(self) -> LossyCall:
        """A call of ``generate()`` with these drafts."""
        return self._call_of(self.evaluation.modes[0])

    def _call_of(self, mode: DecodingMode) -> LossyCall:
        """Return the call of a mode, which raises where it can't run."""
        mode = replace(mode, rule=mode.rule or "lossless", gamma=mode.gamma or 1)
        return LossyCall.from_keywords(self.models.target, mode.keywords(self.models, 0))

    @property
    def _looks_up_first(self) -> bool:
        return self._call.choice.looked_up > 0

    @property
    def _by_position(self) -> bool:
        """Whether the draft's law at a position does not depend on where a draft began."""
        return self._call.choice.drafts_with_model

    @cached_property
    def _longest(self) -> int:
        """The most tokens of a draft that are tried; where laws depend on its beginning, they are read for so many."""
        asked = {*self.gammas, *(gamma for mode, _ in self.rules for gamma in mode.gamma or ())} - {AUTO}
        usual = GAMMAS[-1] if self._by_position else (self.models.lookup if self.models.only_looks_up else STEPS)
        return min(max([usual, *asked]), self.models.longest)

    @property
    def temperature(self) -> float | None:
        return self.evaluation.modes[0].temperature

    def run(self) -> Advice:
        """Let the target answer, read the answers, time the models, and replay every rule."""
        rules, _ = self.rules, self.labelled  # what is wrong with them is said first
        laws = self.laws
        tokens = laws.lengths.double().numpy()
        length = float(np.mean([batch.ids.shape[1] for batch in self.texts.batches]) + tokens.mean() / 2)
        repeats = self._costs(round(length))
        speeds = Speeds(tokens, length, merged(repeats), repeats, self.rows, self.temperature is not None)
        replayed = [self.replay(mode, rule) for mode, rule in self.track(rules, description="replaying")]
        lossless = self._decided(rules[0][1])[0]
        matches = float(lossless.keep[laws.by_draft.real.numpy()].mean())

        def keeping(share: float) -> dict[int | str, Walk]:
            kept = lossless.keeping(share)
            return {gamma: kept.walk(laws, *end) for gamma, end in self._ends(rules[0][1]).items()}

        known = keeping if laws.alone else None
        advice = Advice(replayed, speeds, matches, known, self.texts.decoding, drafting=self.models.drafting)
        if self.draft_cost is not None:
            advice = advice.with_draft_cost(self.draft_cost)
        if speeds.steady and self.guard:
            advice = self._checked(advice)
        if self.out is not None:
            write_json(self.out / "advice.json", advice.entry)
            (self.out / GENERATION_CONFIG).unlink(missing_ok=True)  # of other advice
            if speeds.steady:
                GenerationConfig(**advice.best().settings).save_pretrained(self.out)
            draw(advice, self.out / "advice.png")
        return advice

    def _checked(self, advice: Advice) -> Advice:
        """Let the setting that seems the fastest, and its neighbours, run until each is corrected by its own run."""

        def missing() -> list[Row]:
            known = {(run.mode, run.gamma) for run in advice.runs}
            return [row for row in advice.contenders if (row.mode, row.gamma) not in known]

        while rows := missing():
            advice = replace(advice, runs=(*advice.runs, *(self._run(advice, row) for row in rows)))
        return advice

    def _run(self, advice: Advice, row: Row) -> Trial:
        """Run a setting on the first prompts, in batches of which there are two at least."""
        one = next(one for one in advice.replayed if one.mode.label == row.mode)
        mode = replace(one.mode, gamma=row.gamma, temperature=self.temperature, top_p=self.evaluation.modes[0].top_p)
        batches = replace(self.evaluation, batch_size=self.rows).batches[: max(2, -(-self.guard // self.rows))]
        made = [
            run_request(self.models, mode, batch, self.evaluation.length)
            for batch in self.track(batches, description=f"running {row.mode}")
        ]
        return Trial.of(row.mode, row.gamma, made)

    @cached_property
    def labelled(self) -> Labelled | None:
        """The labels, if there are any."""
        if self.labels is None:
            return None
        from .outcomes import Labelled  # needs pyarrow, which the package alone does without

        if self.temperature is not None:
            raise LossyUnsupportedError(
                "`labels` tell what greedy decoding does to answers, but here tokens are drawn; leave `labels` out"
            )
        task = self.evaluation.task
        return Labelled.read(self.labels, self.models, None if isinstance(task, PromptList) else task.name)

    @cached_property
    def laws(self) -> TextLogits | LookupFirstLogits:
        """What both models say along the target's answers, which are made now."""
        return self.texts.laws(looked_up=self._looks_up_first)

    @cached_property
    def rules(self) -> list[tuple[DecodingMode, Acceptor]]:
        """The modes and their rules, ``lossless`` first; a mode's draft lengths are those to show."""
        texts = [text.strip() for text in split(self.modes or (GREEDY if self.temperature is None else SAMPLED), ",")]
        found = {}
        for text in dict.fromkeys(("lossless", *texts, EVERYTHING)):
            (mode,) = parse_modes(text, None, self.temperature)
            if mode.gamma == AUTO and not self._ends_by_itself:
                raise LossyValueError(
                    f"`modes` has {text!r}, but drawn drafts, and those of batches or of prompt lookup, are replayed "
                    "with a number of tokens; put it after the @"
                )
            if mode.rule is None:
                raise LossyValueError(
                    f"`modes` has to name rules, but has {text!r}; the target alone is in every table"
                )
            heads = {name: self.models.heads[name] for name in mode.rules if name in self.models.heads}
            mode.check_heads(self.models.heads)
            config = LossyConfig.from_fields(mode.rule, dict(mode.settings), heads or mode.head)
            if config != LossyConfig(config.rule):
                raise LossyUnsupportedError(
                    f"`modes` has {text!r}, but only rules with chains can be replayed: branches of trees leave the "
                    "text, and limits look at it; compare such modes by `lossy-assist evaluate`"
                )
            rule = config.rule
            try:
                self._call_of(mode)
                if self.models.only_looks_up and "draft_probs" in rule.needs:
                    raise missing("draft_probs", rule, "prompt lookup", "give a `draft`")
            except LossyError:
                if self.modes:
                    raise
                continue  # a usual rule that does not go with this draft
            if reads_states(rule) and (self._looks_up_first or not self._by_position):
                raise LossyUnsupportedError(
                    f"`modes` has {text!r}, but rules that read states or dropped heads are replayed with a draft "
                    "model alone; compare such modes by `lossy-assist evaluate`"
                )
            label = str(replace(Spelling.read(text, "modes"), gamma=None))
            known = found.get(label, (mode, rule, ()))[2]
            found[label] = replace(mode, label=label), rule, (*known, *filter(None, [mode.gamma]))
        return [(replace(mode, gamma=shown), rule) for mode, rule, shown in found.values()]

    @cached_property
    def texts(self) -> AnswerTexts:
        return AnswerTexts(self.evaluation, self._by_position, self._longest, self.out, self.track)

    def _costs(self, length: int) -> list[Costs]:
        gammas, repeats = (TIMED, 6) if self.tune else ((0, 1, 5, 16, 32), 3)
        gammas = sorted({min(gamma, self._longest) for gamma in gammas})
        mode = FREE if self.models.only_looks_up else KEEP_ALL
        mode = replace(mode, temperature=self.temperature, top_p=self.evaluation.modes[0].top_p)
        models, text = replace(self.models, lookup=0), self.texts.batches[0].ids[0].tolist()
        return repeated_costs(
            models, text, lengths=(length,), gammas=gammas, mode=mode, repeats=repeats, rows=self.rows,
            track=lambda turns: self.track(turns, description="timing"),
        )  # fmt: skip

    def replay(self, mode: DecodingMode, rule: Acceptor) -> Replayed:
        """Walk along the answers as a rule would, with drafts of every length."""
        if getattr(rule, "dropout", None) == AUTO:
            found = self.dropout(rule.num_paths)
            mode, rule = replace(mode, settings={**mode.settings, "dropout": found}), replace(rule, dropout=found)
        shown = mode.gamma or (self.gammas if mode.label != EVERYTHING else ())
        sampled, ends = self.temperature is not None, self._ends(rule) | {x: (x, 0.0) for x in shown if x != AUTO}
        together = rule.has_effect(sampled) and (rule.reads_draft or (sampled and rule.decides_whole_drafts))
        if together or not self.laws.alone:
            # What such a rule emits at a position depends on others.
            losses = dict.fromkeys(("tv", "kl", "outside"), 0.0) if rule.is_lossless(sampled) else {}
            walks = {gamma: rounds(rule, self.laws, most, sampled, end) for gamma, (most, end) in ends.items()}
        else:
            alone, losses = self._decided(rule)
            if (run := rule.unverified_drafting) is not None:
                # A run ends with the drafted token that the target decides, and no token of the target's own.
                walk = alone.walk(self.laws, run.max_draft - 1, run=True)
                return Replayed(replace(mode, gamma=None), {walk.gamma: walk}, (walk.gamma,))
            walks = {gamma: alone.walk(self.laws, *end) for gamma, end in ends.items()}
        walks = {gamma: replace(walk, gamma=gamma) for gamma, walk in walks.items()}
        return Replayed(replace(mode, gamma=None), walks, tuple(shown), losses, partial(self._answers, rule))

    def _answers(self, rule: Acceptor, walk: Walk) -> dict[str, Interval]:
        """Return how many answers a rule loses and wins, where labels tell."""
        kept = None if self.labelled is None else self.labelled.kept(rule, walk.sizes.shape[1] - 1)
        return {} if kept is None else self.labelled.outcomes(kept, walk.others)

    def _ends(self, rule: Acceptor) -> dict[int | str, tuple[int, float]]:
        """Return how long a rule's drafts may be, and the bound that ends them, for each setting that is tried."""
        auto = {AUTO: (min(LONGEST, self._longest), rule.drafts_until)} if self._ends_by_itself else {}
        return {gamma: (gamma, 0.0) for gamma in GAMMAS if gamma <= self._longest} | auto

    @property
    def _ends_by_itself(self) -> bool:
        """Whether a text says where its drafts end: drawn ones end by what is drawn, and a batch waits for all rows.

        A draft that is looked up has no law to end it.
        """
        return self.temperature is None and self.rows == 1 and self.models.draft is not None

    def dropout(self, paths: int) -> float:
        """Return one dropout for ``dropmatch`` on all prompts, found as a call does on its own."""
        target = self.models.target
        states = [read_text(target, batch.ids[0].tolist()).states[-POSITIONS:] for batch in self.texts.batches]
        return DROPOUTS[choose_dropout(target.get_output_embeddings(), torch.cat(states), paths)]

    def _decided(self, rule: Acceptor) -> tuple[Acceptance, dict[str, float]]:
        if not reads_states(rule):
            laws = self.laws.by_draft
            return (greedy(rule, laws), {}) if self.temperature is None else drawn(rule, laws)
        sums = [LossyConfig(rule).in_full(), *(head.checksum for head in self.models.heads.values())]
        name = f"{rule.name.replace(' ', '-')}-{zlib.crc32(json.dumps(sums).encode()):08x}"
        drawn_too, track = self.temperature is not None, partial(self.track, description=rule.name)

        def read(prompt: list[int], ids: list[int]) -> dict[str, Tensor]:
            processors = self.texts.processors(prompt)
            return decided(rule, self.models.target, self.models.draft, ids, len(prompt), processors, drawn_too)

        found = self.texts.about(name, read, track)
        padded = (
            torch.nn.utils.rnn.pad_sequence([text[key] for text in found], batch_first=True)[..., None].double().numpy()
            for key in ("keep", "others", "nats")
        )
        return Acceptance(*padded), {}


def advise(
    target: PreTrainedModel,
    draft: PreTrainedModel | StateHead | None,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Task | Prompts,
    *,
    prompt_lookup_num_tokens: int | None = None,
    modes: str | None = None,
    gammas: Sequence[int] = (),
    limit: int | None = None,
    split: str = "test",
    max_new_tokens: int | None = None,
    heads: Mapping[str, Head] | None = None,
    temperature: float | None = None,
    top_p: float = 1.0,
    batch_size: int = 1,
    draft_cost: float | None = None,
    tune: bool = False,
    seed: int = 0,
    measure: str | None = None,
    labels: str | Path | None = None,
    out: str | Path | None = None,
    track: Track = progress_bar,
) -> Advice:
    """Predict how fast every rule would be with these models, here, and what it would change.

    The target answers the prompts. Each model reads the answers once, and every rule decides along them: a token that
    it keeps in place of the target's own counts as the target's. So rounds, kept tokens and the best draft length
    follow for each rule. The speed follows from rounds that are timed here. Only the recommended rule and its
    neighbours run, on eight prompts each, which corrects them.

    Parameters
    ----------
    target, draft, tokenizer
        The models, which share the tokenizer. The draft may be a head on the target's states, such as EAGLE-3's, or
        None where all is looked up.
    prompt_lookup_num_tokens
        Up to so many tokens are looked up in the text, before the draft drafts; without a draft, in its place.
    prompts
        A task, or texts or lists of token ids like those that the models will get; with a chat template, a text is the
        user's turn.
    modes
        ``"RULE[+RULE][@GAMMA][:KEY=VALUE…],…"``; the usual rules by default.
    gammas
        Draft lengths to show; each rule's best by default: a number or, greedily, auto, for drafts that end by default.
    limit, split
        The number of prompts, 12 or four batches of a task by default, and the task's split.
    max_new_tokens
        The longest answer; the task's by default, and 256 without one.
    heads
        Trained heads by the rule that uses them.
    temperature, top_p
        Of sampling, with no other warper; without a temperature, decoding is greedy.
    batch_size
        How many prompts are decoded together. A batch ends with its slowest row; prompts that fill none are left out.
    draft_cost
        The time of a drafted token as a share of a token of the target alone, for other hardware; measured by default.
    tune
        Whether to time more draft lengths, more often.
    seed
        Of the first prompt; each further prompt adds one.
    measure
        How the answers in ``out`` are scored, as for :func:`~hf_lossy_assist.evaluate`; by default not at all, or as
        those that are there.
    labels
        A folder of ``lossy-assist mine --labels judge`` for these models and prompts like these. By its labels, each
        rule's row predicts how many of 100 greedy answers become wrong or right (:mod:`.outcomes` has the model);
        rules that read states are left out. Without labels, nothing is said about answers.
    track
        Shows progress, as for :func:`~hf_lossy_assist.evaluate`.
    out
        A folder for ``advice.json``, what the models said, and the answers, with which an interrupted run goes on.
        :func:`~hf_lossy_assist.evaluate` reads and writes the same answers, those of the target alone.

    Raises
    ------
    LossyValueError
        When an argument can't work; before any forward pass.
    LossyUnsupportedError
        When the draft does not share the target's tokenizer, or the extra ``lab`` is missing.

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
    if prompt_lookup_num_tokens is not None:
        ONE_OR_MORE.check("prompt_lookup_num_tokens", prompt_lookup_num_tokens)
    models = Models(target, draft, dict(heads or {}), prompt_lookup_num_tokens or 0, tokenizer)
    folder = None if out is None else Path(out)
    evaluation = target_alone(
        models, tokenizer, prompts, folder, limit=limit, split=split, max_new_tokens=max_new_tokens, seed=seed,
        temperature=temperature, top_p=top_p, measure=measure, batch_size=batch_size,
    )  # fmt: skip
    evaluation = replace(evaluation, limit=len(evaluation.examples) // batch_size * batch_size or evaluation.limit)
    return Advising(
        evaluation, modes or "", tuple(gammas), draft_cost, tune, batch_size, out=folder, labels=labels, track=track
    ).run()
