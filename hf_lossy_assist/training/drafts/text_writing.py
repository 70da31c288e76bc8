"""Training texts that a target writes, many at a time, and the prompts that they begin with."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...core.distributions import Randomness
from ...errors import LossyValueError
from ...mining.choice import Choice
from ...mining.ratio_labels import Continuation, write_all
from ...mining.writing import ResponseLimits
from ...tasks.task import Task
from .texts import Text, TextStore

_MARK = "\u2588"
_MOST = 100_000


class Opening(NamedTuple):
    """The tokens that a text begins with.

    If the target writes the user's turn first, ``turn_end`` follows it; its first token ends the turn.
    """

    ids: tuple[int, ...]
    turn_end: tuple[int, ...] = ()


def self_asked(tokenizer: PreTrainedTokenizerBase) -> Opening:
    """Return the opening after which a chat model writes the user's turn."""
    before = after = ""
    if tokenizer.chat_template:
        turn = [{"role": "user", "content": _MARK}]
        text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
        before, _, after = text.partition(_MARK)
    ids, end = (tokenizer(part, add_special_tokens=False)["input_ids"] for part in (before, after))
    if not ids or not end:
        raise LossyValueError(
            "without `--prompts` or `--task` the target writes its prompts itself, for which its tokenizer has to have "
            "a chat template with something before and behind a user's turn, but it has none; name a file of prompts "
            "by `--prompts`"
        )
    return Opening(tuple(ids), tuple(end))


def of_task(task: Task, tokenizer: PreTrainedTokenizerBase) -> list[Opening]:
    split = "train" if "train" in task.splits else task.splits[0]
    examples = task.examples(split, _MOST)
    return [Opening(ids) for ids in dict.fromkeys(tuple(task.encode(example, tokenizer)) for example in examples)]


def dealt(openings: Sequence[Opening], batch: int, rows: int, seed: int) -> list[Opening]:
    """Return the openings of a batch, which have similar lengths; after the last batch they are dealt anew."""
    if len(openings) == 1:  # every row writes its own text
        return [*openings] * rows
    by_length = sorted(openings, key=lambda opening: len(opening.ids))
    parts = [by_length[i : i + rows] for i in range(0, len(by_length), rows)]
    deal, place = divmod(batch, len(parts))
    random.Random(f"{seed}/{deal}").shuffle(parts)
    return parts[place]


@dataclass(frozen=True)
class TextSettings:
    """How texts are written.

    ``rows`` are written at a time. ``max_new_tokens`` bounds an answer, ``max_turn_tokens`` a user's turn. A share
    ``greedy_share`` of the answers is greedy; the others and the users' turns are drawn at ``temperature``.
    """

    rows: int = 96
    max_new_tokens: int = 384
    max_turn_tokens: int = 160
    temperature: float = 0.9
    greedy_share: float = 0.5
    seed: int = 0


@dataclass(frozen=True)
class _SomeGreedy(Choice):
    """The likeliest token for the first ``greedy`` texts, a draw for the others; a text's context is its number."""

    greedy: int
    temperature: float
    random: Randomness

    def context(self, ids: Iterable[int]) -> int:
        return next(iter(ids))

    def choose(self, logits: Tensor, contexts: list[int]) -> list[int]:
        # Inverts the distribution function, which is much faster on a CPU than torch's `multinomial`.
        weights = (logits / self.temperature).softmax(-1).cumsum(-1)
        points = self.random.uniform((len(weights), 1), weights.device) * weights[:, -1:]
        drawn = torch.searchsorted(weights, points, right=True)[:, 0].clamp(max=weights.shape[-1] - 1)
        greedy = torch.tensor(contexts, device=logits.device) < self.greedy
        return torch.where(greedy, logits.argmax(-1), drawn).tolist()


def write_texts(
    model: PreTrainedModel,
    openings: Sequence[Opening],
    batch: int,
    settings: TextSettings,
    ends: frozenset[int],
    known: set[tuple[int, ...]],
) -> list[Text]:
    """Write the texts of one batch; its number seeds the draws.

    ``ends`` are the tokens that end an answer. ``known`` are the prompts that the target has made up so far: new ones
    are added to it, and repeated ones get no answer.
    """
    draws = Randomness(settings.seed * 1_000_003 + batch)

    def written(prompts: Sequence[tuple[int, ...]], ends: frozenset[int], longest: int, greedy: int) -> list[Text]:
        continuations = [Continuation(ids, ("target",), number) for number, ids in enumerate(prompts)]
        choice = _SomeGreedy(greedy, settings.temperature, draws)
        tokens = write_all({"target": model}, continuations, ResponseLimits(ends, longest), choice)
        return [
            Text((*ids, *new), len(ids), i < greedy) for i, (ids, new) in enumerate(zip(prompts, tokens, strict=True))
        ]

    prompts = [opening.ids for opening in openings]
    if end := openings[0].turn_end:
        turns = written(prompts, ends | {end[0]}, settings.max_turn_tokens, 0)
        asked = [turn.ids + end[1:] for turn in turns if turn.ids[-1] == end[0] and len(turn.ids) > turn.answer + 1]
        prompts = [prompt for prompt in dict.fromkeys(asked) if prompt not in known]
        known |= {*prompts}
    return written(prompts, ends, settings.max_new_tokens, round(settings.greedy_share * len(prompts)))


def write_until(
    tokens: int,
    store: TextStore,
    model: PreTrainedModel,
    openings: Sequence[Opening],
    settings: TextSettings,
    ends: frozenset[int],
    *,
    process: int = 0,
    processes: int = 1,
    on_batch: Callable[[int, float], None] = lambda answer_tokens, tokens_per_second: None,
) -> None:
    """Add batches to a store until its answers have ``tokens`` tokens; processes take turns."""
    there = set(store.batches())
    known = {text.prompt for batch in there for text in store.read(batch)} if openings[0].turn_end else set()
    for batch in itertools.count(process, processes):
        if store.answer_tokens() >= tokens:
            return
        if batch in there:
            continue
        begun = time.perf_counter()
        texts = write_texts(model, dealt(openings, batch, settings.rows, settings.seed), batch, settings, ends, known)
        store.add(batch, texts)
        written = sum(len(text.ids) - text.answer for text in texts)
        on_batch(store.answer_tokens(), written / (time.perf_counter() - begun))
