"""An evaluation: several modes answer the same problems, and their scores are compared problem by problem."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .. import tasks
from ..compat.models import device_of, is_sharded, unwrap
from ..drafting.vocabulary import vocabulary_sizes
from ..errors import LossyUnsupportedError, LossyValueError, brief, need, warn
from ..generation.certificate import draft_changes
from ..generation.enabling import enabled
from ..heads import Head
from ..heads.head import place_head
from ..models.quantised import is_prepacked
from ..pairs import Pair
from ..progress import track
from ..store.folder import Process, this_process, write_json
from ..tasks import Example, Task
from ..values import ONE_OR_MORE, Checked, Count
from .answers import Answer, AnswerStore, provenance
from .modes import DecodingMode, modes_of
from .requests import Ending, PromptBatch, Response, batches_of, run_request
from .result import EvaluationResult, baselines_of

_WARM_UP_TOKENS = 4


@dataclass(frozen=True, eq=False)
class Evaluation(Checked):
    """Problems, and the modes that answer them.

    All modes answer a batch before any answers the next, and take turns in going first, so noise affects all alike.
    Every mode is compared with the mode labelled ``reference``.
    """

    pair: Pair  # its task gives the problems
    modes: Sequence[DecodingMode]
    reference: str
    limit: Annotated[int, ONE_OR_MORE] = 100  # the most problems
    split: str = "test"
    batch_size: Annotated[int, ONE_OR_MORE] = 1
    max_new_tokens: Annotated[int | None, ONE_OR_MORE] = None  # None: the task's own
    seed: Count = 0  # of the first problem; each further problem adds one
    process: Process = field(default_factory=Process)  # its number decides which batches it answers
    judged: bool = True  # whether answers are scored, where the task can

    def __post_init__(self) -> None:
        super().__post_init__()
        target, draft, tokenizer = self.pair.target, self.pair.draft, self.pair.tokenizer
        unwrap(target, "target")  # refuses what can't generate
        if self.process.count > 1 and is_sharded(target):
            raise LossyUnsupportedError("processes that share one model can't share the problems; run one process")
        if tokenizer is not None and isinstance(draft, PreTrainedModel):
            own, known = vocabulary_sizes(target, draft)
            if known < (count := min(own, len(tokenizer.get_vocab()))):
                warn(
                    f"`draft` knows {known} of the target's {count} tokens, and never drafts the others: see whether "
                    "it is the draft of another target"
                )
        labels = [mode.label for mode in self.modes]
        if len(set(labels)) < len(labels):
            raise LossyValueError(f"`modes` has to name every mode once, but is {labels}")
        if len({(mode.temperature, mode.top_p) for mode in self.modes}) > 1:
            raise LossyValueError("`modes` have to draw at one `temperature`, or none of them at any")
        if self.reference not in labels:
            raise LossyValueError(f"`reference` has to be one of the modes {labels}, but is {self.reference!r}")
        for mode in self.modes:
            mode.check_pair(self.pair)
        if not self.examples:
            raise LossyValueError(f"`split` has to be one with problems, but {self.split!r} has none")
        if twice := len(self.examples) - len({f"{example.prompt}" for example in self.examples}):
            warn(f"{twice} of the {len(self.examples)} prompts repeat earlier ones, which intervals take for new ones")

    @cached_property
    def examples(self) -> list[Example]:
        """The problems; a problem's id is its index here."""
        return self.pair.task.examples(self.split, self.limit)

    @cached_property
    def batches(self) -> list[PromptBatch]:
        prompts = [self.pair.task.encode(example, self.pair.tokenizer) for example in self.examples]
        if not all(map(len, prompts)):
            raise LossyValueError("`task` has to have prompts of one token or more, but has one without any")
        device, tokenizer, ends = device_of(self.pair.target), self.pair.tokenizer, self.pair.task.ends
        ending = Ending(ends, tokenizer) if ends else None
        pad = tokenizer.pad_token_id
        return batches_of(prompts, self.batch_size, device=device, pad=pad, seed=self.seed, ending=ending)

    @property
    def own_batches(self) -> dict[int, PromptBatch]:
        """The batches that this process answers, by their index."""
        return {b: batch for b, batch in enumerate(self.batches) if b % self.process.count == self.process.number}

    @property
    def length(self) -> int:
        return self.max_new_tokens or self.pair.task.max_new_tokens

    def run(self, store: AnswerStore | None = None) -> Iterator[dict[str, Answer]]:
        """Yield each problem's answers by mode label, as soon as all modes have answered it.

        Answers go to ``store``; problems already answered there are skipped.

        Examples
        --------
        >>> from hf_lossy_assist import pairs
        >>> from hf_lossy_assist.evaluation.modes import parse_modes
        >>> pair = pairs.load("arithmetic")
        >>> modes = parse_modes("lossless,topk:k=2", gamma=8)
        >>> evaluation = Evaluation(pair, modes, "lossless")
        >>> losses = []
        >>> for answers in evaluation.run():
        ...     losses.append(answers["lossless"].score - answers["topk:k=2"].score)
        ...     if len(losses) == 2:
        ...         break
        >>> losses
        [0.0, 0.0]
        """
        store = AnswerStore() if store is None else store
        warm: set[str] = set()
        with enabled(self.pair.target):
            for b, batch in self.own_batches.items():
                ids = range(b * self.batch_size, b * self.batch_size + len(batch))
                modes = [mode for mode in self.modes if any((mode.label, i) not in store for i in ids)]
                self._warm_up([mode for mode in modes if mode.label not in warm], batch)
                warm |= {mode.label for mode in modes}
                self._answer(modes, b, batch, store)
                for i in ids:
                    yield {mode.label: store[mode.label, i] for mode in self.modes}

    def _warm_up(self, modes: Sequence[DecodingMode], batch: PromptBatch) -> None:
        """Let modes answer without recording it; one that can't run fails before others spend time on answers."""
        batch = PromptBatch(batch.ids[:, -_WARM_UP_TOKENS:], batch.mask[:, -_WARM_UP_TOKENS:], batch.seed)
        for mode in modes:
            try:
                run_request(self.pair, mode, batch, min(_WARM_UP_TOKENS, self.length))
            # Of this package or of transformers' own checks; its own loop can't use a target on disk.
            except (ValueError, NotImplementedError) as error:
                reason = f"{mode.label}: {str(error).strip()}"
                raise LossyValueError(f"`modes` has a mode that can't run here, {reason}") from error

    def _answer(self, modes: Sequence[DecodingMode], b: int, batch: PromptBatch, store: AnswerStore) -> None:
        """Let modes answer a batch in turn; their answers are stored once the reference's are made."""
        waits = self.reference in {mode.label for mode in modes}
        made: list[tuple[DecodingMode, Response]] = []
        for place in range(len(modes)):
            mode = modes[(place + b) % len(modes)]
            made.append((mode, run_request(self.pair, mode, batch, self.length)))
            waits = waits and mode.label != self.reference
            if not waits:
                for one, response in sorted(made, key=lambda each: each[0].label != self.reference):
                    for answer in self._answers_of(one, b, response, store):
                        store.add(answer)
                made = []

    def _answers_of(self, mode: DecodingMode, b: int, response: Response, store: AnswerStore) -> list[Answer]:
        """Return a mode's answers to a batch, given its call; ``store`` holds the reference's."""
        size = len(response.rows)
        texts = self.pair.tokenizer.batch_decode(response.rows, skip_special_tokens=True)
        answers = []
        rows = zip(texts, response.rows, response.work, response.drafted or [None] * size, strict=True)
        for i, (text, tokens, (rounds, accepted, lossy), drafted) in enumerate(rows, b * self.batch_size):
            score = None
            if self.judged and self.pair.task.scored:
                own = text if mode.label == self.reference else store[self.reference, i].text
                score = float(self.pair.task.score(self.examples[i], text, own))
            cut = self.pair.is_cut(tokens, text, self.length)
            answers.append(
                Answer(
                    mode.label, i, score, len(tokens), rounds, accepted, response.seconds / size, text, lossy, cut,
                    len(self._prompt(i)), drafted,
                    () if self.pair.tokens_of(text, cut) == tokens.tolist() else tuple(tokens.tolist()),
                )
            )  # fmt: skip
        return answers

    def tokens_of(self, answer: Answer) -> list[int]:
        """Return the tokens of an answer of this evaluation."""
        tokens = [*answer.ids] or self.pair.tokens_of(answer.text, answer.cut)
        if len(tokens) != answer.tokens:
            raise LossyValueError(
                f"`out` has to hold whole texts, but that of {answer.mode!r} to problem {answer.id} has {len(tokens)} "
                f"tokens instead of {answer.tokens}; choose another folder"
            )
        return tokens

    @cached_property
    def _problems(self) -> list[int]:
        return [one.digest(self._prompt(i).tolist()) for i, one in enumerate(self.examples)]

    def _prompt(self, i: int) -> Tensor:
        batch, row = self.batches[i // self.batch_size], i % self.batch_size
        return batch.ids[row][batch.mask[row].bool()]

    def plan(self) -> dict[str, Any]:
        """Return everything the answers depend on, for an :class:`AnswerStore`."""
        target, draft = self.pair.target, self.pair.draft
        return {
            "task": self.pair.task.name,
            "split": self.split,
            "scoring": dict(self.pair.task.scoring),
            "reference": self.reference,
            "batch_size": self.batch_size,
            "max_new_tokens": self.length,
            "seed": self.seed,
            "dtype": str(target.dtype).removeprefix("torch."),
            **self.pair.identity,
            **({"prepacked": True} if is_prepacked(target) else {}),
            **draft_changes(draft),
            **({"prompt_lookup_num_tokens": self.pair.lookup} if draft is not None and self.pair.lookup else {}),
            **({"ends": list(self.pair.task.ends)} if self.pair.task.ends else {}),
            "modes": {mode.label: mode.described(self.pair.rule_heads) for mode in self.modes},
            "problems": self._problems,
            "runs": [provenance(device_of(target), limit=self.limit, processes=self.process.count)],
        }

    def complete(self, out: Path | None) -> EvaluationResult:
        """Answer all problems, and return the result; a folder ``out`` keeps it."""
        if out is None and self.process.count > 1:
            raise LossyValueError(f"`out` has to be a folder that all {self.process.count} processes sum up in")
        used = {rule for mode in self.modes for rule in mode.rules}
        for rule in used & self.pair.rule_heads.keys():
            learnt = self.pair.rule_heads[rule].config.told("problems")
            if seen := len({*map(str, self._problems)}.intersection(map(str, learnt))):
                warn(f"the head of {rule!r} was trained on {seen} of the problems, and may do worse on others")
        store = AnswerStore() if out is None else AnswerStore(out, self.plan())
        for _ in track(self.run(store), total=sum(map(len, self.own_batches.values())), what="problems answered"):
            pass
        with store.lock:  # or a process that has seen fewer answers could write last
            store.refresh()
            result = self.result(store)
            if store.folder is not None:
                write_json(store.folder / "summary.json", {label: row.entry for label, row in result.modes.items()})
                if len({(run.get("cpu"), run.get("threads")) for run in store.plan["runs"]}) > 1:
                    warn("`out` has times of several machines or numbers of threads, which no ratio may compare")
            return result

    def result(self, store: AnswerStore) -> EvaluationResult:
        """Return a store's answers in the order of modes and problems, with every mode's score."""
        order = {mode.label: m for m, mode in enumerate(self.modes)}
        found = [answer for answer in store if answer.mode in order and answer.id < len(self.examples)]
        answers = tuple(sorted(found, key=lambda answer: (order[answer.mode], answer.id)))
        lossless = {mode.label for mode in self.modes if mode.decides_losslessly(self.pair.rule_heads)}
        result = EvaluationResult.of(answers, self.reference, baselines_of(self.modes), lossless, self.batch_size)
        return replace(result, is_whole=len(answers) == len(self.modes) * len(self.examples))


def reference_of(modes: Sequence[DecodingMode]) -> str:
    """Return the label to compare with: the target alone's, else lossless's, else the first."""
    alone = (mode.label for mode in modes if mode.is_alone)
    lossless = (mode.label for mode in modes if mode.rule == "lossless")
    return next(alone, None) or next(lossless, None) or modes[0].label


def evaluate(
    target: PreTrainedModel,
    draft: PreTrainedModel | None = None,
    *,
    tokenizer: PreTrainedTokenizerBase,
    task: Task | str,
    modes: str | Sequence[str | DecodingMode] = "plain,lossless",
    heads: Mapping[str, Head | str] | None = None,
    reference: str | None = None,
    limit: int = 100,
    split: str = "test",
    batch_size: int = 1,
    gamma: int | str = 5,
    prompt_lookup_num_tokens: int | None = None,
    temperature: float | None = None,
    top_p: float = 1.0,
    max_new_tokens: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
) -> EvaluationResult:
    """Let several decoding modes answer the same problems, and compare their scores and speeds problem by problem.

    Parameters
    ----------
    target, draft, tokenizer
        The models, which share the tokenizer. Without a draft only the target alone can run.
    task
        A task, or a name for :func:`hf_lossy_assist.tasks.load`.
    modes
        ``"plain,stock,RULE[+RULE][@GAMMA][:KEY=VALUE…],…"``, as for ``lossy-assist evaluate --modes``, or a list of
        such; ``all`` stands for ``lossless`` and every rule that can differ from it here.
    heads
        Trained heads, or their folders or repositories, by the rule that uses them.
    reference
        The mode to compare with: the target alone by default, else lossless, else the first.
    limit, split, batch_size
        The number of problems, the task's split, and how many are answered together.
    gamma
        Drafted tokens per round for modes that do not say.
    temperature, top_p
        Of sampling, with no other warper; without a temperature, decoding is greedy.
    prompt_lookup_num_tokens
        Up to so many tokens are looked up in the text, where that promises more than the draft's γ. Without a draft
        they replace ``gamma``.
    max_new_tokens
        The longest response; the task's by default.
    seed
        Of the first problem; each further problem adds one.
    out
        A folder for ``results.jsonl`` and ``summary.json``; an interrupted run continues there.

    Returns
    -------
    EvaluationResult
        The answers, and each mode's :class:`~hf_lossy_assist.evaluation.result.ModeScore` by label.

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
        ONE_OR_MORE.check("prompt_lookup_num_tokens", prompt_lookup_num_tokens)
        gamma = gamma if draft is not None else prompt_lookup_num_tokens
    known = {name: place_head(f"`heads[{name!r}]`", Head, x, device_of(target)) for name, x in (heads or {}).items()}
    pair = Pair(target, draft, tokenizer, heads=known, lookup=prompt_lookup_num_tokens or 0)
    listed: list[DecodingMode] = []
    for mode in [modes] if isinstance(modes, str) else modes:
        listed += modes_of(mode, gamma, temperature, top_p, pair.rule_heads) if isinstance(mode, str) else [mode]
    if not listed or not all(isinstance(mode, DecodingMode) for mode in listed):
        raise LossyValueError(f"`modes` has to be a text or a list of modes, but is {brief(modes)}")
    if (temperature, top_p) != (None, 1) and any(isinstance(mode, DecodingMode) for mode in modes):
        raise LossyValueError(
            "`temperature` and `top_p` are for modes that are texts; give a `DecodingMode` its own, "
            "`DecodingMode(…, temperature=…)`"
        )
    asked = tasks.load(task) if isinstance(task, str) else task
    if not isinstance(asked, Task):
        raise LossyValueError(
            f"`task` has to be a task or the name of one, but is a {type(asked).__name__}; write own prompts "
            "into a file, and take `tasks.load('prompts', 'prompts.txt')`"
        )
    evaluation = Evaluation(
        replace(pair, task=asked), listed, reference_of(listed) if reference is None else reference,
        limit, split, batch_size, max_new_tokens, seed, this_process(),
    )  # fmt: skip
    return evaluation.complete(None if out is None else Path(out))
