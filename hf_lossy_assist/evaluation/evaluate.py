"""An evaluation: several modes answer the same problems of a task, and are compared problem by problem."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .. import tasks
from ..errors import LossyValueError
from ..heads import Head, ModelIdentity
from ..mining.mining_run import Process, this_process
from ..tasks import Example, Task
from .answers import Answer, AnswerStore
from .comparison import rotated, warm_up
from .measures import MEASURES, Measurable
from .modes import DecodingMode, Models, parse_modes
from .plots import PlotPoint, plot
from .quality import ModeScore, mode_scores
from .records import provenance
from .requests import PromptBatch, Response, batches_of, run_request

_WARM_UP_TOKENS = 8


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Problems, and the modes that answer them.

    Every mode's score is compared with that of the mode labelled ``reference``, which answers each batch first, so
    that what it says is at hand where texts are compared. The others go first in turn.
    """

    models: Models
    tokenizer: PreTrainedTokenizerBase
    task: Task
    modes: Sequence[DecodingMode]
    reference: str
    limit: int = 100  # how many problems at most
    split: str = "test"
    batch_size: int = 1
    max_new_tokens: int | None = None  # as many as the task's answers need by default
    seed: int = 0  # of the first problem; the next has the next one
    process: Process = field(default_factory=Process)  # which of the batches are this process's
    measure: str = "task"  # what a score is: one of :data:`~hf_lossy_assist.evaluation.measures.MEASURES`

    def __post_init__(self) -> None:
        labels = [mode.label for mode in self.modes]
        if len(set(labels)) < len(labels):
            raise LossyValueError(f"`modes` has to name every mode once, but is {labels}")
        if self.reference not in labels:
            raise LossyValueError(f"`reference` has to be one of the modes {labels}, but is {self.reference!r}")
        missing = [
            mode.label for mode in self.modes if self.models.draft is None and (mode.gamma or mode.answers == "draft")
        ]
        if missing:
            raise LossyValueError(f"an assistant has to be given for the mode {missing[0]!r}; there is no draft")
        for mode in self.modes:
            mode.check_heads(self.models.heads)
        if self.measure not in MEASURES:
            raise LossyValueError(f"`measure` has to be one of {list(MEASURES)}, but is {self.measure!r}")
        if not self.examples:
            raise LossyValueError(f"`split` has to be one with problems, but {self.split!r} has none")

    @cached_property
    def examples(self) -> list[Example]:
        """The problems; the id of each is its place here."""
        return self.task.examples(self.split, self.limit)

    @cached_property
    def batches(self) -> list[PromptBatch]:
        """The problems' prompts, those that follow each other together."""
        prompts = [self.task.encode(example, self.tokenizer) for example in self.examples]
        device, pad = self.models.target.device, self.tokenizer.pad_token_id
        return batches_of(prompts, self.batch_size, device=device, pad=pad, seed=self.seed)

    @property
    def length(self) -> int:
        """The longest response, in tokens."""
        return self.max_new_tokens or self.task.max_new_tokens

    def run(
        self, store: AnswerStore | None = None, wanted: Callable[[str], bool] = lambda label: True
    ) -> Iterator[dict[str, Answer]]:
        """Yield the answers to each problem of this process by their modes' labels, as soon as all have answered.

        Whoever has seen enough stops asking. What is in ``store`` is not answered again, and what is answered goes
        there. Before each batch ``wanted`` is asked whether a mode, by its label, is still to answer; the reference
        always does.

        Examples
        --------
        >>> from hf_lossy_assist import pairs
        >>> pair = pairs.load("arithmetic")
        >>> modes = parse_modes("lossless,topk:k=2", gamma=8)
        >>> evaluation = Evaluation(Models(pair.target, pair.draft), pair.tokenizer, pair.task, modes, "lossless")
        >>> losses = []
        >>> for answers in evaluation.run():
        ...     losses.append(answers["lossless"].score - answers["topk:k=2"].score)
        ...     if len(losses) == 2:
        ...         break
        >>> losses
        [0.0, 0.0]
        """
        store = AnswerStore() if store is None else store
        modes = sorted(self.modes, key=lambda mode: mode.label != self.reference)
        warm: set[str] = set()
        for b, batch in enumerate(self.batches):
            if b % self.process.count != self.process.number:
                continue
            ids = range(b * self.batch_size, b * self.batch_size + len(batch))
            labels = [mode.label for mode in modes if mode.label == self.reference or wanted(mode.label)]
            missing = {label: [i for i in ids if (label, i) not in store.known] for label in labels}
            turns = [modes[0], *(rotated(modes[1:], b) if modes[1:] else [])]
            turns = [mode for mode in turns if missing.get(mode.label)]
            # All at once: what can't run says so before others have answered.
            cold = [mode for mode in turns if mode.label not in warm]
            warm_up(self.models, cold, batch, min(_WARM_UP_TOKENS, self.length), strict=True)
            warm |= {mode.label for mode in cold}
            for mode in turns:
                response = run_request(self.models, mode, batch, self.length)
                answers = self.scored(mode, ids, response, store)
                store.add([answer for answer in answers if answer.id in missing[mode.label]])
            for i in ids:
                yield {label: store.known[label, i] for label in labels}

    def take(self, responses: Mapping[str, Sequence[Response]], store: AnswerStore) -> None:
        """Put answers into a store that others have made: each mode's responses to the batches, by its label."""
        for mode in sorted(self.modes, key=lambda mode: mode.label != self.reference):
            for b, response in enumerate(responses.get(mode.label, ())):
                first = b * self.batch_size
                store.add(self.scored(mode, range(first, first + len(response.rows)), response, store))

    def scored(self, mode: DecodingMode, ids: Sequence[int], response: Response, store: AnswerStore) -> list[Answer]:
        """Return the answers in a mode's response to the problems ``ids``; ``store`` has the reference's."""
        texts = self.tokenizer.batch_decode(response.rows, skip_special_tokens=True)
        answers = []
        for i, text, tokens, (rounds, accepted, lossy) in zip(ids, texts, response.rows, response.work, strict=True):
            own = text if mode.label == self.reference else store.known[self.reference, i].text
            score = MEASURES[self.measure](
                Measurable(self.task, self.examples[i], self.models.target, self._prompt(i), tokens, text, own)
            )
            seconds = response.seconds / len(ids)
            answers.append(Answer(mode.label, i, score, len(tokens), rounds, accepted, seconds, text, lossy))
        return answers

    def _problems(self) -> list[int]:
        """Return a number for each problem that tells its rendered prompt and its answer from others."""
        texts = (f"{self._prompt(i).tolist()}\0{example.answer}" for i, example in enumerate(self.examples))
        return [zlib.crc32(text.encode()) for text in texts]

    def _prompt(self, i: int) -> Tensor:
        batch, row = self.batches[i // self.batch_size], i % self.batch_size
        return batch.ids[row][batch.mask[row].bool()]

    def plan(self) -> dict[str, Any]:
        """Return what the answers depend on, for an :class:`AnswerStore`."""
        target, draft = self.models.target, self.models.draft
        return {
            "task": self.task.name,
            "split": self.split,
            "measure": self.measure,
            "scoring": dict(self.task.scoring),
            "reference": self.reference,
            "batch_size": self.batch_size,
            "max_new_tokens": self.length,
            "seed": self.seed,
            "dtype": str(target.dtype).removeprefix("torch."),
            "target": asdict(ModelIdentity.of(target)),
            "draft": None if draft is None else asdict(ModelIdentity.of(draft)),
            "modes": {mode.label: _described(mode, self.models.heads) for mode in self.modes},
            "problems": self._problems(),
            "runs": [provenance(target.device, limit=self.limit, processes=self.process.count)],
        }

    def finish(self, store: AnswerStore) -> EvaluationResult:
        """Return what is in a store now, and save it where the store has a folder."""
        with store.locked():  # or a process that has seen less could be the last to write
            store.refresh()
            result = self.result(store)
            if store.folder is not None:
                result.save(store)
            return result

    def result(self, store: AnswerStore) -> EvaluationResult:
        """Return what is in a store, in the order of the modes and problems, compared with the reference."""
        order = {mode.label: m for m, mode in enumerate(self.modes)}
        found = [store.known[key] for key in store.known if key[0] in order and key[1] < len(self.examples)]
        answers = tuple(sorted(found, key=lambda answer: (order[answer.mode], answer.id)))
        return EvaluationResult(answers, {row.label: row for row in mode_scores(answers, self.reference)})


def _described(mode: DecodingMode, heads: Mapping[str, Head]) -> dict[str, Any]:
    sums = {rule: heads[rule].checksum for rule in mode.rules if rule in heads}
    return {**mode.config, "temperature": mode.temperature, "heads": sums}


@dataclass(frozen=True, eq=False)
class EvaluationResult:
    """The answers of an evaluation, and the scores of every mode by its label."""

    answers: Sequence[Answer]
    modes: Mapping[str, ModeScore]

    def save(self, store: AnswerStore) -> None:
        """Write ``summary.json``, with one entry per mode, and ``plot.png``, with speed against score."""
        entries = {label: {k: v for k, v in asdict(row).items() if k != "label"} for label, row in self.modes.items()}
        store.write("summary.json", entries)
        plot(
            {label: [score_point(row, row.tokens_per_second)] for label, row in self.modes.items()},
            "tokens per second", "score (%; bars: 95 % interval of the difference)", store.folder / "plot.png",
        )  # fmt: skip


def score_point(row: ModeScore, x: float, label: str = "") -> PlotPoint:
    """Return a mode's score, in per cent, with the interval of its difference, at some place."""
    low, high = row.score - (row.difference - row.low), row.score + (row.high - row.difference)
    return PlotPoint((x, x, x), (100 * row.score, 100 * low, 100 * high), label)


def named_modes(text: str, gamma: int | str = 5, temperature: float | None = None) -> list[DecodingMode]:
    """Read modes as :func:`~hf_lossy_assist.evaluation.modes.parse_modes` does; each is labelled as it was written."""
    names = [name.strip() for name in text.split(",")]
    modes = parse_modes(text, gamma, temperature)
    return [replace(mode, label=name) for name, mode in zip(names, modes, strict=True)]


def reference_of(modes: Sequence[DecodingMode]) -> str:
    """Return the label of the mode that others are compared with: the target alone, else lossless, else the first."""
    alone = (mode.label for mode in modes if mode.gamma is None and mode.answers == "target")
    lossless = (mode.label for mode in modes if mode.rule == "lossless")
    return next(alone, None) or next(lossless, None) or modes[0].label


def evaluate(
    target: PreTrainedModel,
    draft: PreTrainedModel | None = None,
    *,
    tokenizer: PreTrainedTokenizerBase,
    task: Task | str,
    modes: str | Sequence[DecodingMode] = "plain,lossless",
    heads: Mapping[str, Head] | None = None,
    reference: str | None = None,
    limit: int = 100,
    split: str = "test",
    batch_size: int = 1,
    gamma: int | str = 5,
    temperature: float | None = None,
    max_new_tokens: int | None = None,
    seed: int = 0,
    measure: str = "task",
    out: str | Path | None = None,
) -> EvaluationResult:
    """Let several decoding modes answer the same problems, and compare their scores problem by problem.

    Parameters
    ----------
    target, draft, tokenizer
        The models, which share the tokenizer; only the target alone needs no draft.
    task
        A task, or the name of one: see :func:`hf_lossy_assist.tasks.load`.
    modes
        As ``lossy-assist evaluate --modes`` takes them: ``"plain,stock,RULE[+RULE][@GAMMA][:KEY=VALUE…],…"``.
    heads
        Trained heads by the rule that uses them.
    reference
        The mode that all are compared with: the target alone by default, else lossless, else the first.
    limit, split
        How many problems, and of which split.
    batch_size
        Problems that are answered together.
    gamma, temperature
        Drafted tokens per round where a mode does not say; and of draws, None for greedy decoding.
    max_new_tokens
        The longest response; as long as the task's answers need by default.
    seed
        Of the first problem's draws; the next problem has the next one.
    measure
        What a score is: the task's; "rouge", ROUGE-L against the reference's text; or "likelihood", the geometric mean
        of the tokens' p under the target. The last two suit open-ended prompts.
    out
        A folder for ``results.jsonl``, ``summary.json`` and ``plot.png``. A run that was interrupted goes on there.

    Returns
    -------
    EvaluationResult
        The answers, and by each mode's label its :class:`~hf_lossy_assist.evaluation.quality.ModeScore`.

    Examples
    --------
    >>> import hf_lossy_assist
    >>> from hf_lossy_assist import pairs
    >>> pair = pairs.load("arithmetic")
    >>> result = hf_lossy_assist.evaluate(
    ...     pair.target, pair.draft, tokenizer=pair.tokenizer, task=pair.task, modes="plain,dropmatch", limit=2
    ... )
    >>> result.modes["dropmatch"].n, result.modes["dropmatch"].difference
    (2, 0.0)
    """
    listed = named_modes(modes, gamma, temperature) if isinstance(modes, str) else list(modes)
    evaluation = Evaluation(
        Models(target, draft, heads or {}), tokenizer, tasks.load(task) if isinstance(task, str) else task, listed,
        reference or reference_of(listed), limit, split, batch_size, max_new_tokens, seed, this_process(),
        measure,
    )  # fmt: skip
    store = AnswerStore() if out is None else AnswerStore(Path(out), evaluation.plan())
    for _ in evaluation.run(store):
        pass
    return evaluation.finish(store)
