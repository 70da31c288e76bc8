"""Advising: the target answers, both models read the answers, and every rule replays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from ...acceptors import Acceptor
from ...acceptors.base import AUTO
from ...drafting.draft_ends import DEFAULT_NUM_TOKENS, LONGEST
from ...errors import LossyError, LossyUnsupportedError, LossyValueError, need
from ...generation.config import LossyConfig
from ...generation.lossy_call import LossyCall
from ...generation.spelling import Spelling, split
from ...pairs import Pair
from ...progress import track
from ...store.folder import MANIFEST, write_json
from ...tasks import Task
from ...tasks.prompts import PromptList
from ..answers import AnswerStore, read_plan
from ..evaluation import Evaluation
from ..modes import EVERYTHING, DecodingMode, by_name, parse_modes
from ..requests import PromptBatch
from .advice import Advice, Replayed
from .replay import Acceptance, TextLogits, drawn, greedy, processors_of, read_laws
from .speeds import KEEP_ALL, Costs, Speeds, measure_costs, merged

GAMMAS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32)
"""Draft lengths among which each rule's best is looked for."""

TIMED, REPEATS = (1, 5, 16, 32), 3
"""The draft lengths that are timed, and how often."""

GREEDY = "near_top,min_p,margin,topk,typical,relaxed:top_n=2:delta=0.2,fsd,lenience,ensemble"
"""The rules that are compared by default in greedy decoding; ``lossless`` and ``everything`` always are."""

SAMPLED = "ears,ears:beta=0.5,ears:beta=1.0,cactus:delta=0.01,cactus,cactus:delta=1.0,near_top"
SAMPLED += ",near_top:alpha=0.75,lenience,ensemble,typical,topk,min_p"
"""The same when sampling."""

MEASURE = "measure a dozen prompts with `evaluate` instead"


def target_alone(
    pair: Pair, prompts: Task | Sequence[Any], out: Path | None = None, *,
    limit: int | None = None, temperature: float | None = None, top_p: float = 1.0, batch_size: int = 1, **others: Any,
) -> Evaluation:  # fmt: skip
    """Return the evaluation in which the target answers, as the folder ``out`` has it if one is there.

    A folder has the texts of the target alone, with which `evaluate` compares. Without one the target drafts
    losslessly, which is faster. Of a task there are 12 answers by default, or those of four batches.
    """
    prompts = [prompts] if isinstance(prompts, str) else prompts
    task = prompts if isinstance(prompts, Task) else PromptList(prompts)
    limit = limit or (len(prompts) if task is not prompts else 12 if batch_size <= 1 else 4 * batch_size)
    mode = DecodingMode("plain", temperature=temperature, top_p=top_p)
    if out is None:
        mode = replace(mode, label="lossless", rule="lossless", gamma=DEFAULT_NUM_TOKENS)
    elif (out / MANIFEST).exists():
        batch_size = read_plan(out, "out")["batch_size"]
    return Evaluation(replace(pair, task=task), [mode], mode.label, limit, batch_size=batch_size, **others)


@dataclass(frozen=True, eq=False)
class Advising:
    """What advice is about: the target's answers to prompts, and rules."""

    evaluation: Evaluation  # of :func:`target_alone`
    modes: str = ""
    rows: int = 1  # how many prompts are decoded together
    out: Path | None = None  # a folder of answers, which an interrupted run goes on with

    def __post_init__(self) -> None:
        if not self._call_of(self.evaluation.modes[0]).kind.cached or self.pair.lookup:
            raise LossyUnsupportedError(f"`advise` replays drafts of a draft model alone; of others, {MEASURE}")
        if self.rows > 1 and (count := len(self.evaluation.examples)) < 2 * self.rows:
            raise LossyValueError(
                f"`batch_size` has to be at most half the number of prompts, {count}, but is {self.rows}; give more of "
                "them, or raise `limit`"
            )

    @property
    def pair(self) -> Pair:
        return self.evaluation.pair

    def _call_of(self, mode: DecodingMode) -> LossyCall:
        """Return the call of a mode, which raises where it can't run."""
        mode = replace(mode, rule=mode.rule or "lossless", gamma=mode.gamma or 1)
        return LossyCall.from_keywords(self.pair.target, mode.keywords(self.pair, 0))

    @property
    def temperature(self) -> float | None:
        return self.evaluation.modes[0].temperature

    @property
    def sampled(self) -> bool:
        return self.temperature is not None

    @cached_property
    def decoding(self) -> dict[str, Any]:
        """Keywords of ``generate()`` that say how tokens are chosen."""
        keywords = self.evaluation.modes[0].keywords(self.pair, 0)
        return {name: keywords[name] for name in ("do_sample", "temperature", "top_k", "top_p") if name in keywords}

    def run(self) -> Advice:
        """Let the target answer, read the answers, time the models, and replay every rule."""
        rules, laws = self.rules, self.laws  # what is wrong with rules is said first
        tokens = laws.lengths.double().numpy()
        length = float(np.mean([batch.ids.shape[1] for batch in self.batches]) + tokens.mean() / 2)
        repeats = self._costs(round(length))
        speeds = Speeds(tokens, merged(repeats), repeats, self.rows, self.sampled)
        walks = (self.replay(mode, rule) for mode, rule in rules)
        replayed = [*track(walks, total=len(rules), what="replaying")]
        lossless = self._decided(rules[0][1])[0]
        matches = float(lossless.keep[laws.real.numpy()].mean())
        advice = Advice(replayed, speeds, matches, self.decoding)
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
            processors = processors_of(pair.target, prompt, **self.decoding)
            texts.append(read_laws(pair.target, pair.draft, prompt, answer, processors))
        return TextLogits.of(texts, evaluation.length)

    @cached_property
    def rules(self) -> list[tuple[DecodingMode, Acceptor]]:
        """The modes and their rules, ``lossless`` first; a mode's draft lengths are those to show."""
        texts = [by_name(text.strip()) for text in split(self.modes or (SAMPLED if self.sampled else GREEDY), ",")]
        found = {}
        for text in dict.fromkeys(("lossless", *texts, EVERYTHING)):
            (mode,) = parse_modes(text, None, self.temperature)
            if mode.rule is None:
                raise LossyValueError(
                    f"`modes` has to name rules, but has {text!r}; the target alone is in every table"
                )
            if mode.gamma == AUTO and not self._ends_by_itself:
                raise LossyValueError(
                    f"`modes` has {text!r}, but drawn drafts, and those of batches, are replayed with a number of "
                    "tokens; put it after the @"
                )
            mode.check_heads({})
            config = LossyConfig.from_fields(mode.rule, dict(mode.settings), mode.head)
            rule = config.rule
            whole = rule.reads_draft or (self.sampled and rule.decides_whole_drafts)
            reads = rule.needs - {"draft_probs", "draft_or_point_mass"} or rule.unverified_drafting is not None
            if config != LossyConfig(rule) or (whole and rule.has_effect(self.sampled)) or reads:
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
        mode = replace(KEEP_ALL, temperature=self.temperature, top_p=self.evaluation.modes[0].top_p)
        texts = [self.batches[0].ids[0].tolist()] * self.rows
        return measure_costs(self.pair, texts, length, TIMED, mode, REPEATS)

    def replay(self, mode: DecodingMode, rule: Acceptor) -> Replayed:
        """Walk along the answers as a rule would, with drafts of every length."""
        shown = mode.gamma or ()
        ends = self._ends(rule) | {x: (x, 0.0) for x in shown if x != AUTO}
        decided, losses = self._decided(rule)
        walks = {gamma: replace(decided.walk(self.laws, *end), gamma=gamma) for gamma, end in ends.items()}
        return Replayed(replace(mode, gamma=None), walks, tuple(shown), losses)

    def _ends(self, rule: Acceptor) -> dict[int | str, tuple[int, float]]:
        """Return how long a rule's drafts may be, and the bound that ends them, for each setting that is tried."""
        auto = {AUTO: (LONGEST, rule.drafts_until)} if self._ends_by_itself else {}
        return {gamma: (gamma, 0.0) for gamma in GAMMAS} | auto

    @property
    def _ends_by_itself(self) -> bool:
        """Whether a text says where its drafts end: drawn ones end by what is drawn, and a batch waits for all rows."""
        return not self.sampled and self.rows == 1

    def _decided(self, rule: Acceptor) -> tuple[Acceptance, dict[str, float]]:
        return drawn(rule, self.laws) if self.sampled else (greedy(rule, self.laws), {})


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
    temperature: float | None = None,
    top_p: float = 1.0,
    batch_size: int = 1,
    seed: int = 0,
    out: str | Path | None = None,
) -> Advice:
    """Predict how fast rules would be with these models, here, and what they would change.

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
        one: a number or, greedily, auto, for drafts that end by default.
    limit, split
        The number of prompts, 12 or four batches of a task by default, and the task's split.
    max_new_tokens
        The longest answer; the task's by default, and 256 without one.
    temperature, top_p
        Of sampling, with no other warper; without a temperature, decoding is greedy.
    batch_size
        How many prompts are decoded together. A batch ends with its slowest row; prompts that fill none are left out.
    seed
        Of the first prompt; each further prompt adds one.
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
        Pair(target, draft, tokenizer), prompts, folder, limit=limit, split=split, max_new_tokens=max_new_tokens,
        seed=seed, temperature=temperature, top_p=top_p, batch_size=batch_size,
    )  # fmt: skip
    evaluation = replace(evaluation, limit=len(evaluation.examples) // batch_size * batch_size or evaluation.limit)
    return Advising(evaluation, modes or "", batch_size, folder).run()
