"""Greedy modes that answer a batch together: while their texts agree, they share the rows of all forwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList

from .. import compat
from ..acceptors import AnyOf, decide
from ..call.config import RunConfig
from ..call.drafter_making import DrafterMaker
from ..call.lossy_call import LossyCall
from ..call.runner_choice import choose_runners
from ..core.distributions import Randomness
from ..core.messages import Commit, Draft, RowDecision, Verification
from ..core.recorders import RowRecorder, StatsRecorder
from ..core.texts import BatchLayout, RowShift
from ..decoding.progress import Progress, Stopping
from ..models.prepared import Prepared
from ..models.processing import row_aligned
from ..models.target import Target, TargetReader
from .modes import DecodingMode, Models
from .prompt_memory import ReadPrompts
from .requests import PromptBatch, Response, until_end

Decisions = dict[int, RowDecision]  # by mode


def together(models: Models, modes: Sequence[DecodingMode]) -> list[list[DecodingMode]]:
    """Return groups of modes that can share rows; every other mode is a group of its own.

    Such modes are greedy, and draft chains of one length with a draft model. They ask for the same dropped heads, which
    cost all rows of a group.
    """
    groups: dict[Any, list[DecodingMode]] = {}
    for mode in modes:
        config = _config(models, mode)
        kind = mode.label if config is None else (mode.gamma, config.acceptor.dropped_heads)
        groups.setdefault(kind, []).append(mode)
    return list(groups.values())


def _config(models: Models, mode: DecodingMode) -> RunConfig | None:
    """Return the configuration of a mode that can share rows; None for any other mode."""
    if mode.rule is None or mode.engine is not None or mode.temperature is not None or not isinstance(mode.gamma, int):
        return None
    plain = ReadPrompts.suit(models.target) and ReadPrompts.suit(models.draft)
    if models.lookup or not plain or models.target.generation_config.cache_implementation is not None:
        return None
    call = _call(models, mode, 0)
    config, rule = call.config, call.config.acceptor
    usual = RunConfig(rule, config.seed, limits=config.limits, break_even=config.break_even)
    tokens = rule.unverified_drafting is None and not rule.decides_whole_drafts
    return config if config == usual and tokens and call.choice.drafts_with_model else None


def _call(models: Models, mode: DecodingMode, seed: int) -> LossyCall:
    return LossyCall.take(models.target, mode.keywords(models, seed))


def run_together(
    models: Models, modes: Sequence[DecodingMode], batch: PromptBatch, max_new_tokens: int
) -> dict[str, Response]:
    """Answer one batch in several modes of one group of :func:`together`; return their responses by label.

    Every mode has the tokens and the rounds that it has alone, up to rounding and to the draws of dropped heads. A
    forward covers a text once, however many modes have written it, so its time belongs to no mode:
    ``Response.seconds`` is None.
    """
    rounds = _SharedRounds([_call(models, mode, batch.seed) for mode in modes], models.tokenizer)
    models.target.generate(
        input_ids=batch.ids,
        attention_mask=batch.mask,
        max_new_tokens=max_new_tokens,
        pad_token_id=models.target.generation_config.pad_token_id or 0,
        do_sample=False,
        stopping_criteria=batch.ending.criteria if batch.ending else None,
        custom_generate=rounds,
    )
    responses = {}
    for mode, texts, records in zip(modes, rounds.texts, rounds.records, strict=True):
        rows = [until_end(torch.tensor(texts[i]), models.target, batch.ending) for i in range(len(batch))]
        stats = [record.finish(lossless=False, started=0.0) for record in records]
        work = [(row.rounds, row.accepted, row.accepted_lossy) for row in stats]
        responses[mode.label] = Response(rows, None, None, counted_work=work)
    return responses


@dataclass(frozen=True)
class _Row:
    """A text, and the modes that have written it."""

    prompt: int  # its number in the batch
    number: int  # among the rows that stopping criteria know
    modes: tuple[int, ...]
    tokens: tuple[int, ...] = ()  # generated


class _SharedRounds:
    """Decodes the prompts of a call of ``generate()`` by the rules of several calls.

    The rounds are those of :class:`~hf_lossy_assist.decoding.loop.Decoding`, but each rule decides the drafts of the
    texts that it has written. A text of which rules keep different tokens becomes several.
    """

    def __init__(self, calls: Sequence[LossyCall], tokenizer: Any) -> None:
        self.choice, self.seed = calls[0].choice, calls[0].config.seed
        self.rules = [call.config.acceptor for call in calls]
        self.limits = [call.config.limits.bind(tokenizer) for call in calls]

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **inputs: Any,
    ) -> Tensor:
        """Decode what ``generate()`` has prepared; leave every mode's texts and records by prompt."""
        inputs.pop("inputs_tensor", None)
        compat.ready_for_rollback(compat.cache_of(inputs))
        call = Prepared(input_ids, logits_processor, stopping_criteria, generation_config, inputs)
        self.pad, self.layout = call.padding, BatchLayout.of(input_ids, call.padding)
        self.stopping = Stopping(generation_config, stopping_criteria, input_ids, call.padding)
        processors, randomness = row_aligned(logits_processor, self.layout), Randomness(self.seed)
        every = AnyOf(tuple(self.rules))  # asks for all that any of them reads
        runner, draft_runner = choose_runners(model, None, every, self.choice, call)
        self.target = Target(runner, TargetReader(model, processors, every, False, randomness))
        progress = Progress(self.stopping, None, StatsRecorder(lossless=False))
        self.drafter = DrafterMaker(self.choice, every, call, processors, randomness).drafter(progress, draft_runner)
        modes, prompts = range(len(self.rules)), range(len(input_ids))
        self.records = [[RowRecorder() for _ in prompts] for _ in modes]
        self.texts: list[dict[int, tuple[int, ...]]] = [{} for _ in modes]
        self.rows = [_Row(i, i, tuple(modes)) for i in prompts]
        ids = input_ids
        with runner.in_use(), self.drafter.in_use():
            while self.rows:
                ids = self.round(ids)
        return input_ids

    def round(self, ids: Tensor) -> Tensor:
        """Run one round over the texts ``ids`` ``(B, W)``; return those that go on ``(B', W')``."""
        remaining = self.target.remaining(ids.shape[1], [self.stopping.remaining(row.number) for row in self.rows])
        draft = self.drafter.propose(ids, self.layout, remaining)
        candidate = torch.cat([ids, draft.tokens], dim=-1)
        verification = self.target.verify(candidate, draft)
        kept = self.decide(draft, candidate, verification)
        grown = [(i, row) for i in range(len(self.rows)) for row in self.grow(i, kept[i], draft)]
        for row in (row for _, row in grown if self.stopping.ended[row.number]):
            for mode in row.modes:
                self.texts[mode][row.prompt] = row.tokens
        grown = [(i, row) for i, row in grown if not self.stopping.ended[row.number]]
        if not grown:
            self.rows = ()
            return ids
        return self.follow(candidate, verification, grown)

    def decide(self, draft: Draft, candidate: Tensor, v: Verification) -> list[dict[tuple[int, ...], Decisions]]:
        """Return for each text, by the tokens that stay, the decisions of the modes that keep these."""
        kept: list[dict[tuple[int, ...], Decisions]] = [{} for _ in self.rows]
        for mode, (rule, limits) in enumerate(zip(self.rules, self.limits, strict=True)):
            own = [i for i, row in enumerate(self.rows) if mode in row.modes]
            if not own:
                continue
            records, at = (
                [self.records[mode][self.rows[i].prompt] for i in own],
                torch.tensor(own, device=v.tokens.device),
            )
            answer = replace(v.of_rows(at), charged=[record.charged for record in records])
            positions = None
            if limits is not None:
                counts = [x.generated for x in records], [x.lossy for x in records]
                positions = limits.lossless_positions(candidate[at], answer.shape, *counts)
            lengths = None if draft.lengths is None else tuple(draft.lengths[i] for i in own)
            drafted = Draft(answer.tokens, lengths=lengths)
            for i, decision in zip(own, decide(rule, answer, positions).to_host(drafted), strict=True):
                kept[i].setdefault(tuple(decision.tokens), {})[mode] = decision
        return kept

    def grow(self, i: int, kept: dict[tuple[int, ...], Decisions], draft: Draft) -> Iterator[_Row]:
        """Yield the texts that the i-th one becomes, and count the round in the records of their modes."""
        row = self.rows[i]
        numbers = [row.number, *(self.stopping.fork(row.number) for _ in range(len(kept) - 1))]
        for number, (tokens, decisions) in zip(numbers, kept.items(), strict=True):
            [count] = self.stopping.commit([number], [list(tokens)])
            for mode, decision in decisions.items():
                self.records[mode][row.prompt].add(decision, draft.undecided_in(i), count, None)
            yield _Row(row.prompt, number, tuple(decisions), row.tokens + tokens[:count])

    def follow(self, candidate: Tensor, v: Verification, grown: Sequence[tuple[int, _Row]]) -> Tensor:
        """Let caches and texts follow the rows; ``grown`` has each with the number of the text that it was."""
        sources, rows = zip(*grown, strict=True)
        start = candidate.shape[1] - len(v)
        counts = [len(row.tokens) - len(self.rows[i].tokens) for i, row in grown]
        lengths = [self.layout.lengths[i] + count for i, count in zip(sources, counts, strict=True)]
        ends = tuple(start + count for count in counts)
        shift = RowShift(sources, ends, max(lengths), candidate.device)
        whole = torch.nn.functional.pad(candidate, (0, 1))
        commit = Commit(
            ids=whole,
            start=start,
            drafted=len(v),
            accepted=tuple(count - 1 for count in counts),
            counts=tuple(counts),
            rows=tuple(row.prompt for row in rows),
            padding=tuple(self.layout.left_padding),
            verification=v,
            shift=shift,
        )
        self.target.keep(commit)
        self.drafter.observe(commit)
        self.rows, self.layout.rows, self.layout.lengths = rows, [row.prompt for row in rows], lengths
        texts = whole.index_select(0, shift.index)
        for text, row, count in zip(texts, rows, counts, strict=True):
            text[start : start + count] = torch.tensor(row.tokens[len(row.tokens) - count :], device=text.device)
        return replace(shift, rows=tuple(range(len(rows)))).take(texts, self.pad)
