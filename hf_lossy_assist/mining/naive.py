"""The search without any reuse, to measure what the reuse is worth.

Every continuation is a ``generate()`` of its own from the prompt on, every look of the draft a forward over all of the
text, and one prompt is searched at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel

from ..tasks import Task
from .choice import Choice
from .outcomes import Prompt
from .search import Found, search
from .searches import Searched, Searches
from .writing import Counts, Ids, Limits


@dataclass(frozen=True)
class Comparison:
    """Both searches over the same prompts.

    Attributes
    ----------
    prompts, mismatches
        How many were searched, and how many labels came out.
    different
        Prompts of which the labels are not the same. In float32 there should be none.
    naive_tokens, tokens
        Tokens that the target read.
    naive_seconds, seconds
        Wall time, of the search alone.
    """

    prompts: int
    mismatches: int
    different: int
    naive_tokens: int
    tokens: int
    naive_seconds: float
    seconds: float


class _Chosen(LogitsProcessor):
    """Makes greedy decoding take the token that a choice takes."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        chosen = self.choice.choose(scores, [self.choice.context(ids) for ids in input_ids.tolist()])
        return torch.full_like(scores, -torch.inf).scatter_(1, torch.tensor(chosen, device=scores.device)[:, None], 0.0)


class _Desk:
    """Does at once what one search wishes."""

    def __init__(self, plan: NaiveSearch, prompt: Prompt) -> None:
        self.plan = plan
        self.prompt = prompt
        self.reply: Any = None
        self.counts = Counts()

    def continue_(self, slot: int, prefix: Ids) -> None:
        plan = self.plan
        if plan.limits.over(prefix):
            self.reply = prefix
            return
        ids = torch.tensor([[*self.prompt.tokens, *prefix]], device=plan.target.device)
        output = plan.target.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=plan.limits.max_new_tokens - len(prefix),
            eos_token_id=sorted(plan.limits.eos) or None,
            pad_token_id=0,
            logits_processor=LogitsProcessorList([_Chosen(plan.choice)]),
        )
        # The last token that is written is not read.
        self.counts.target_tokens += output.shape[1] - 1
        self.reply = tuple(output[0, len(self.prompt.tokens) :].tolist())

    def guess(self, slot: int, response: Ids, start: int) -> None:
        text = [*self.prompt.tokens, *response]
        draft = self.plan.draft
        logits = draft(input_ids=torch.tensor([text[:-1]], device=draft.device), use_cache=False).logits[0]
        first = len(self.prompt.tokens) + start
        contexts = [self.plan.choice.context(text[:i]) for i in range(first, len(text))]
        self.reply = tuple(self.plan.choice.choose(logits[first - 1 :].float(), contexts)) if contexts else ()

    def ask(self, slot: int, question: Callable[[], Any]) -> None:
        self.reply = question()


@dataclass(frozen=True, eq=False)
class NaiveSearch:
    """One search after the other.

    Parameters
    ----------
    target, draft
        The models.
    limits, choice
        Where responses end, and how tokens are chosen.
    task, decode
        As in :class:`~.searches.Searches`.
    """

    target: PreTrainedModel
    draft: PreTrainedModel
    limits: Limits
    choice: Choice
    task: Task
    decode: Callable[[Sequence[int]], str]

    @torch.inference_mode()
    def run(self, prompts: Sequence[Prompt]) -> list[Searched]:
        """Search every prompt."""
        results = []
        for prompt in prompts:
            desk = _Desk(self, prompt)
            found = _drive(search(prompt.example, self.task, self.decode), desk)
            results.append(Searched(prompt, desk.counts, found))
        return results


def _drive(steps: Any, desk: _Desk) -> Found:
    wish = next(steps)
    while True:
        wish.hand_to(desk, 0)
        try:
            wish = steps.send(desk.reply)
        except StopIteration as end:
            return end.value


def compare(plan: Searches, naive: NaiveSearch, prompts: Sequence[Prompt]) -> Comparison:
    """Search the same prompts both ways, a batch at a time in turns, so that both meet the same load of the machine.

    Parameters
    ----------
    plan
        The search that is measured.
    naive
        What it is measured against.
    prompts
        The prompts; batches are as large as ``plan`` has slots.
    """
    seconds = {naive: 0.0, plan: 0.0}
    found: dict[Any, dict[int, Searched]] = {naive: {}, plan: {}}
    for start in range(0, len(prompts), plan.slots):
        batch = prompts[start : start + plan.slots]
        for searcher in (naive, plan):
            begun = time.perf_counter()
            found[searcher].update({searched.prompt.id: searched for searched in searcher.run(batch)})
            seconds[searcher] += time.perf_counter() - begun
    ours, theirs = found[plan], found[naive]
    return Comparison(
        prompts=len(ours),
        mismatches=sum(len(searched.found.mismatches) for searched in theirs.values()),
        different=sum(ours[i].found != theirs[i].found for i in ours),
        naive_tokens=sum(searched.counts.target_tokens for searched in theirs.values()),
        tokens=sum(searched.counts.target_tokens for searched in ours.values()),
        naive_seconds=seconds[naive],
        seconds=seconds[plan],
    )
