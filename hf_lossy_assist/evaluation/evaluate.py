"""An evaluation: several modes answer the same problems, and their scores are compared problem by problem."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from .. import tasks
from ..call.spelling import split
from ..compat import ending_tokens
from ..drafting.vocabulary import kept_tokens
from ..errors import LossyValueError, need
from ..heads import Head, ModelIdentity
from ..models.prepacked import is_prepacked
from ..models.quantised import dtype_of
from ..store.process import Process, this_process
from ..tasks import Example, Task
from ..values import bounded
from .answers import Answer, AnswerStore, problem_sum
from .comparison import rotated, warm_up
from .costs import costs_of, lengths_between, predicted_seconds
from .meters import machine, peak_memory, reset_peak_memory
from .modes import DecodingMode, Models, parse_modes, with_noise
from .quality import MEASURES, Measurable
from .records import provenance
from .requests import Ending, PromptBatch, Response, batches_of, run_request
from .result import EvaluationResult

_COUNT = bounded(1, integer=True)
_WARM_UP_TOKENS = 4


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Problems, and the modes that answer them.

    Every mode is compared with the mode labelled ``reference``, which answers each batch first because some measures
    compare texts with its own. The others take turns in following it.
    """

    models: Models
    tokenizer: PreTrainedTokenizerBase
    task: Task
    modes: Sequence[DecodingMode]
    reference: str
    limit: int = 100  # the most problems
    split: str = "test"
    batch_size: int = 1
    max_new_tokens: int | None = None  # None: the task's own
    seed: int = 0  # of the first problem; each further problem adds one
    process: Process = field(default_factory=Process)  # its number decides which batches it answers
    measure: str = "task"  # one of :data:`~hf_lossy_assist.evaluation.quality.MEASURES`

    def __post_init__(self) -> None:
        for name in ("limit", "batch_size"):
            _COUNT.check(name, getattr(self, name))
        labels = [mode.label for mode in self.modes]
        if len(set(labels)) < len(labels):
            raise LossyValueError(f"`modes` has to name every mode once, but is {labels}")
        if self.reference not in labels:
            raise LossyValueError(f"`reference` has to be one of the modes {labels}, but is {self.reference!r}")
        for mode in self.modes:
            mode.check_draft(model=self.models.draft is not None, lookup=self.models.lookup)
            mode.check_heads(self.models.heads)
        if self.measure not in MEASURES:
            raise LossyValueError(f"`measure` has to be one of {list(MEASURES)}, but is {self.measure!r}")
        if not self.examples:
            raise LossyValueError(f"`split` has to be one with problems, but {self.split!r} has none")

    @cached_property
    def examples(self) -> list[Example]:
        """The problems; a problem's id is its index here."""
        return self.task.examples(self.split, self.limit)

    @cached_property
    def batches(self) -> list[PromptBatch]:
        prompts = [self.task.encode(example, self.tokenizer) for example in self.examples]
        device, pad = self.models.target.device, self.tokenizer.pad_token_id
        ending = Ending.of(self.task, self.tokenizer)
        return batches_of(prompts, self.batch_size, device=device, pad=pad, seed=self.seed, ending=ending)

    @property
    def own_batches(self) -> dict[int, PromptBatch]:
        """The batches that this process answers, by their index."""
        return {b: batch for b, batch in enumerate(self.batches) if b % self.process.count == self.process.number}

    @property
    def length(self) -> int:
        return self.max_new_tokens or self.task.max_new_tokens

    def run(
        self, store: AnswerStore | None = None, wanted: Callable[[str], bool] = lambda label: True
    ) -> Iterator[dict[str, Answer]]:
        """Yield each problem's answers by mode label, as soon as all modes have answered it.

        Answers go to ``store``; problems already answered there are skipped. Before each batch, ``wanted`` says of each
        label whether that mode should still answer; the reference always does.

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
        for b, batch in self.own_batches.items():
            ids = range(b * self.batch_size, b * self.batch_size + len(batch))
            labels = [mode.label for mode in modes if mode.label == self.reference or wanted(mode.label)]
            missing = {label: [i for i in ids if (label, i) not in store.known] for label in labels}
            turns = [modes[0], *(rotated(modes[1:], b) if modes[1:] else [])]
            turns = [mode for mode in turns if missing.get(mode.label)]
            # A mode that can't run fails before others spend time on answers.
            cold = [mode for mode in turns if mode.label not in warm]
            few = PromptBatch(batch.ids[:, -_WARM_UP_TOKENS:], batch.mask[:, -_WARM_UP_TOKENS:], batch.seed)
            warm_up(self.models, cold, few, min(_WARM_UP_TOKENS, self.length), strict=True)
            warm |= {mode.label for mode in cold}
            for mode in turns:
                reset_peak_memory(self.models.target.device)
                response = run_request(self.models, mode, batch, self.length)
                answers = self.scored(mode, ids, response, store, peak_memory(self.models.target.device))
                store.add([answer for answer in answers if answer.id in missing[mode.label]])
            for i in ids:
                yield {label: store.known[label, i] for label in labels}

    def take(self, responses: Mapping[str, Sequence[Any]], store: AnswerStore) -> None:
        """Score responses made elsewhere, or their records, into a store: a mode's to the batches, by label."""
        for mode in sorted(self.modes, key=lambda mode: mode.label != self.reference):
            for b, response in enumerate(responses.get(mode.label, ())):
                first = b * self.batch_size
                store.add(self.scored(mode, range(first, first + len(response.rows)), response, store))

    def scored(
        self, mode: DecodingMode, ids: Sequence[int], response: Response, store: AnswerStore, memory: int | None = None
    ) -> list[Answer]:
        """Return a mode's answers to the problems ``ids``; ``store`` holds the reference's."""
        drafted = response.drafted or [None] * len(ids)
        texts = self.tokenizer.batch_decode(response.rows, skip_special_tokens=True)
        ends = ending_tokens(self.models.target.generation_config)
        answers = []
        rows = zip(ids, texts, response.rows, response.work, drafted, strict=True)
        for i, text, tokens, (rounds, accepted, lossy), drawn in rows:
            own = text if mode.label == self.reference else store.known[self.reference, i].text
            score = MEASURES[self.measure](
                Measurable(self.task, self.examples[i], self.models.target, self._prompt(i), tokens, text, own)
            )
            cut = len(tokens) >= self.length and int(tokens[-1]) not in ends
            seconds = response.seconds / len(ids)
            answers.append(
                Answer(
                    mode.label, i, score, len(tokens), rounds, accepted, seconds, text, lossy, cut,
                    len(self._prompt(i)), drawn, memory if mode.engine is None else None,
                )
            )  # fmt: skip
        return answers

    def _problems(self) -> list[int]:
        """Return a hash of each problem's rendered prompt and answer."""
        return [problem_sum(self._prompt(i).tolist(), example.answer) for i, example in enumerate(self.examples)]

    def _prompt(self, i: int) -> Tensor:
        batch, row = self.batches[i // self.batch_size], i % self.batch_size
        return batch.ids[row][batch.mask[row].bool()]

    def plan(self) -> dict[str, Any]:
        """Return everything the answers depend on, for an :class:`AnswerStore`."""
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
            **model_changes(target, draft),
            **({"ends": list(self.task.ends)} if self.task.ends else {}),
            "modes": described(self.modes, self.models.heads),
            "problems": self._problems(),
            "runs": [provenance(target.device, limit=self.limit, processes=self.process.count)],
        }

    def measure_costs(self, store: AnswerStore, track: Callable[[Sequence[Any]], Iterable[Any]] = iter) -> None:
        """Measure what the modes' rounds cost here, at the lengths of the answered texts, and let ``store`` keep it.

        What the store knows of this machine is not measured again; of other machines, it is forgotten.
        """
        if self.process.number or any(mode.engine is not None for mode in self.modes):
            return
        here = machine(self.models.target.device) | {"threads": torch.get_num_threads()}
        known = store.costs["modes"] if store.costs.get("machine") == here else {}
        missing = [mode for mode in self.modes if mode.label not in known]
        if not missing:
            return
        text = max((self._prompt(i).tolist() for i in range(len(self.examples))), key=len)
        found = costs_of(self.models, missing, text, lengths_between(store.known.values()), track)
        store.keep_costs({"machine": here, "modes": known | {label: asdict(one) for label, one in found.items()}})

    def finish(self, store: AnswerStore) -> EvaluationResult:
        """Return the result of a store, and save it if the store has a folder."""
        with store.locked():  # or a process that has seen fewer answers could write last
            store.refresh()
            result = self.result(store)
            if store.folder is not None:
                result.save(store)
            return result

    def result(self, store: AnswerStore) -> EvaluationResult:
        """Return a store's answers in the order of modes and problems, with every mode's score."""
        order = {mode.label: m for m, mode in enumerate(self.modes)}
        found = [store.known[key] for key in store.known if key[0] in order and key[1] < len(self.examples)]
        answers = tuple(sorted(found, key=lambda answer: (order[answer.mode], answer.id)))
        predicted = predicted_seconds(self.modes, store.costs.get("modes", {}), answers)
        kinds = [example.category for example in self.examples]
        same = [mode.label for mode in self.modes if mode.is_the_target_s and mode.label != self.reference]
        noise = same if any(mode.is_rounding for mode in self.modes) else ()
        return replace(EvaluationResult.of(answers, self.reference, kinds, *predicted), noise=noise)


def described(modes: Sequence[DecodingMode], heads: Mapping[str, Head]) -> dict[str, Any]:
    """Return all that the texts of modes depend on besides models and prompts, by label."""
    return {mode.label: _described(mode, heads) for mode in modes}


def _described(mode: DecodingMode, heads: Mapping[str, Head]) -> dict[str, Any]:
    sums = {rule: heads[rule].checksum for rule in mode.rules if rule in heads}
    nucleus = {} if mode.top_p == 1 else {"top_p": mode.top_p}
    return {**mode.config, "temperature": mode.temperature, **nucleus, "heads": sums}


def named_modes(text: str, gamma: int | str = 5, temperature: float | None = None) -> list[DecodingMode]:
    """Read modes like :func:`~hf_lossy_assist.evaluation.modes.parse_modes`, but label each as it is written."""
    names = [name.strip() for name in split(text, ",")]
    modes = parse_modes(text, gamma, temperature)
    return [replace(mode, label=name) for name, mode in zip(names, modes, strict=True)]


def reference_of(modes: Sequence[DecodingMode]) -> str:
    """Return the label to compare with: the target alone's, else lossless's, else the first."""
    alone = (mode.label for mode in modes if mode.gamma is None and mode.answers == "target" and not mode.settings)
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
    prompt_lookup_num_tokens: int | None = None,
    temperature: float | None = None,
    max_new_tokens: int | None = None,
    seed: int = 0,
    measure: str = "task",
    costs: bool = True,
    noise_floor: bool = False,
    out: str | Path | None = None,
) -> EvaluationResult:
    """Let several decoding modes answer the same problems, and compare their scores problem by problem.

    ``transformers.utils.logging.disable_progress_bar()`` hides the progress bar.

    Parameters
    ----------
    target, draft, tokenizer
        The models, which share the tokenizer. Without a draft only the target alone can run.
    task
        A task, or a name for :func:`hf_lossy_assist.tasks.load`.
    modes
        ``"plain,stock,RULE[+RULE][@GAMMA][:KEY=VALUE…],…"``, as for ``lossy-assist evaluate --modes``.
    heads
        Trained heads by the rule that uses them.
    reference
        The mode to compare with: the target alone by default, else lossless, else the first.
    limit, split, batch_size
        The number of problems, the task's split, and how many are answered together.
    gamma, temperature
        Drafted tokens per round for modes that do not say; the temperature of sampling, None for greedy decoding.
    prompt_lookup_num_tokens
        Drafts by prompt lookup instead of a model, up to so many tokens; replaces ``gamma``.
    max_new_tokens
        The longest response; the task's by default.
    seed
        Of the first problem; each further problem adds one.
    measure
        ``"task"``: the task's score. For open-ended prompts ``"rouge"``, ROUGE-L against the reference's text, or
        ``"likelihood"``, the geometric mean of the tokens' p.
    costs
        Whether to measure what rounds cost here, for the predicted seconds of an answer.
    noise_floor
        Whether to add the target in another batch shape and dtype, and ``lossless``: what rounding alone does.
    out
        A folder for ``results.jsonl``, ``summary.json`` and ``plot.png``; an interrupted run continues there.

    Returns
    -------
    EvaluationResult
        The answers, and each mode's :class:`~hf_lossy_assist.evaluation.quality.ModeScore` by label.

    Raises
    ------
    LossyValueError
        If an argument or a mode can't work; before any problem is answered.
    LossyUnsupportedError
        Without the extra ``lab``.

    Examples
    --------
    >>> import hf_lossy_assist
    >>> from hf_lossy_assist import pairs
    >>> pair = pairs.load("arithmetic")
    >>> result = hf_lossy_assist.evaluate(
    ...     pair.target, pair.draft, tokenizer=pair.tokenizer, task=pair.task, modes="plain,dropmatch", limit=1
    ... )
    >>> result.modes["dropmatch"].n, result.modes["dropmatch"].difference
    (1, 0.0)
    """
    need("lab", "`evaluate`")
    if prompt_lookup_num_tokens is not None:
        _COUNT.check("prompt_lookup_num_tokens", prompt_lookup_num_tokens)
        gamma = prompt_lookup_num_tokens
        if draft is not None:
            raise LossyValueError(f"`prompt_lookup_num_tokens` {gamma} drafts without a model; leave it or `draft` out")
    listed = named_modes(modes, gamma, temperature) if isinstance(modes, str) else list(modes)
    if noise_floor:
        listed = with_noise(listed, gamma, dtype=not is_prepacked(target))
    models = Models(target, draft, heads or {}, prompt_lookup_num_tokens is not None, tokenizer)
    evaluation = Evaluation(
        models, tokenizer, tasks.load(task) if isinstance(task, str) else task, listed,
        reference or reference_of(listed), limit, split, batch_size, max_new_tokens, seed, this_process(),
        measure,
    )  # fmt: skip
    store = AnswerStore() if out is None else AnswerStore(Path(out), evaluation.plan())
    total = sum(map(len, evaluation.own_batches.values()))
    for _ in logging.tqdm(evaluation.run(store), desc="answering", total=total):
        pass
    if costs:
        evaluation.measure_costs(store, lambda turns: logging.tqdm(turns, desc="timing"))
    return evaluation.finish(store)


def model_changes(target: nn.Module, draft: nn.Module | None) -> dict[str, Any]:
    """Return the changes that made the models cheaper; their identities do not tell."""
    changes: dict[str, Any] = {"prepacked": is_prepacked(target) or None}
    if draft is not None:
        changes |= {"draft_dtype": dtype_of(draft), "draft_tokens": kept_tokens(draft)}
    return {name: change for name, change in changes.items() if change is not None}
