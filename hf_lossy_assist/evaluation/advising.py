"""Advising: the target answers, both models read the answers, and every rule replays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from ..store.folder import MANIFEST, write_json
from ..tasks import Task
from ..tasks.prompts import PromptList
from .advice import Advice, Replayed
from .answers import AnswerStore, read_plan
from .evaluation import Evaluation
from .modes import EVERYTHING, DecodingMode, by_name, parse_modes
from .replay import TextLogits, greedy, processors_of, read_laws
from .requests import PromptBatch
from .speeds import Costs, Speeds, measure_costs, merged

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
        kept = {name: value for name, value in read_plan(out, "out").items() if name in ("batch_size", "seed")}
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
        if not self._call_of(self.evaluation.modes[0]).kind.cached or self.pair.lookup:
            raise LossyUnsupportedError(f"`advise` replays drafts of a draft model alone; of others, {MEASURE}")

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
        repeats = self._costs(round(length))
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

    def _costs(self, length: int) -> list[Costs]:
        return measure_costs(self.pair, self.batches[0].ids[0].tolist(), length, TIMED, REPEATS)

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
