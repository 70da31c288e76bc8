"""Texts that a target writes for training, many at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicLayer

from ...compat import new_cache
from ...mining.reading import only_last_logits
from ...sampling import Randomness
from .openings import Opening


@dataclass(frozen=True)
class Text:
    """A prompt and what the target answered.

    Attributes
    ----------
    ids
        The tokens.
    answer
        Where the answer begins.
    """

    ids: tuple[int, ...]
    answer: int

    @property
    def prompt(self) -> tuple[int, ...]:
        """The tokens before the answer."""
        return self.ids[: self.answer]


@dataclass(frozen=True)
class TextSettings:
    """How texts are written: equal settings give texts that belong together.

    Attributes
    ----------
    rows
        Texts that are written at a time.
    max_new_tokens, max_turn_tokens
        The longest answer, and the longest turn of a user.
    temperature
        Of users' turns and of answers that are drawn.
    greedy_share
        Share of the answers that take the likeliest token at every position, instead of drawing.
    seed
        Of all draws.
    """

    rows: int = 96
    max_new_tokens: int = 384
    max_turn_tokens: int = 160
    temperature: float = 0.9
    greedy_share: float = 0.5
    seed: int = 0


@dataclass(eq=False)
class _WrittenRow:
    """A text that is being written. Of its tokens, those that the model has not read yet are fed to it one by one."""

    ids: list[int]
    start: int
    turn_end: tuple[int, ...]
    greedy: bool
    answer: int | None


@torch.inference_mode()
def write_texts(
    model: PreTrainedModel,
    openings: Sequence[Opening],
    batch: int,
    settings: TextSettings,
    ends: frozenset[int],
    known: set[tuple[int, ...]],
    on_step: Callable[[int], None] = lambda rows: None,
) -> list[Text]:
    """Write the texts of one batch.

    All rows stand at the same position at any time: what is given of a longer prompt is fed token by token while
    others are already writing, so there is no padding, and no mask.

    Parameters
    ----------
    model
        The target.
    openings
        One for each row.
    batch
        The batch's number, which its draws depend on.
    settings
        How to write.
    ends
        Tokens that end an answer.
    known
        Prompts of the target's own that there are already; a text that asks the same once more is given up. New
        prompts are added.
    on_step
        Called with the number of rows that are left, after every step.
    """
    random = Randomness(settings.seed * 1_000_003 + batch)
    greedy = round(settings.greedy_share * len(openings))
    rows = [
        _WrittenRow([*o.ids], len(o.ids), o.turn_end, i < greedy, None if o.turn_end else len(o.ids))
        for i, o in enumerate(openings)
    ]
    position = min(len(row.ids) for row in rows)
    longest = max(len(row.ids) + len(row.turn_end) + settings.max_turn_tokens * bool(row.turn_end) for row in rows)
    cache = new_cache(model)
    cache.layers = [_BufferedLayer(longest + settings.max_new_tokens) for _ in cache.layers]
    ids = torch.tensor([row.ids[:position] for row in rows], device=model.device)
    done: list[Text] = []
    while rows:
        logits = model(input_ids=ids, past_key_values=cache, use_cache=True, **only_last_logits(model)).logits[:, -1]
        writing = [i for i, row in enumerate(rows) if len(row.ids) == position]
        finished = set()
        for i, token in zip(writing, _choose(logits, rows, writing, settings, random), strict=True):
            if (text := _extend(rows[i], token, settings, ends, known)) is not None:
                finished.add(i)
                done += text
        position += 1
        # The last rows move to where a text has ended.
        for i in sorted(finished, reverse=True):
            last = rows.pop()
            if i < len(rows):
                rows[i] = last
                for layer in cache.layers:
                    layer.move(len(rows), i)
        for layer in cache.layers:
            layer.shrink(len(rows))
        ids = torch.tensor([[row.ids[position - 1]] for row in rows], device=model.device)
        on_step(len(rows))
    return done


def _choose(
    logits: Tensor, rows: list[_WrittenRow], writing: list[int], settings: TextSettings, random: Randomness
) -> list[int]:
    """Return the next token of the rows that are writing."""
    chosen = dict.fromkeys(writing, 0)
    likeliest = [i for i in writing if rows[i].greedy and rows[i].answer is not None]
    drawn = [i for i in writing if not (rows[i].greedy and rows[i].answer is not None)]
    if likeliest:
        chosen.update(zip(likeliest, logits[likeliest].argmax(-1).tolist(), strict=True))
    if drawn:
        # By the inverse of the distribution function, which on a CPU is much faster than torch's `multinomial`.
        weights = (logits[drawn].float() / settings.temperature).softmax(-1).cumsum(-1)
        points = random.uniform((len(drawn), 1), weights.device) * weights[:, -1:]
        tokens = torch.searchsorted(weights, points, right=True).clamp(max=weights.shape[-1] - 1)
        chosen.update(zip(drawn, tokens[:, 0].tolist(), strict=True))
    return [*chosen.values()]


def _extend(
    row: _WrittenRow, token: int, settings: TextSettings, ends: frozenset[int], known: set[tuple[int, ...]]
) -> list[Text] | None:
    """Add a token to a row; return the text where that ends it, nothing where it is given up, None where it goes on."""
    row.ids.append(token)
    if row.answer is not None:
        over = token in ends or len(row.ids) - row.answer >= settings.max_new_tokens
        return [Text(tuple(row.ids), row.answer)] if over else None
    written = len(row.ids) - row.start
    if token == row.turn_end[0]:
        row.ids += row.turn_end[1:]
        row.answer = len(row.ids)
        prompt = tuple(row.ids)
        if written == 1 or prompt in known:
            return []
        known.add(prompt)
        return None
    return [] if token in ends or written >= settings.max_turn_tokens else None


class _BufferedLayer(DynamicLayer):
    """One layer's keys and values, in buffers that hold a whole text: nothing is copied for a token.

    Parameters
    ----------
    length
        The longest text.
    """

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length, self.filled = length, 0
        self.buffers: list[Tensor] = []

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        given = (key_states, value_states)
        if not self.buffers:
            self.is_initialized, self.dtype, self.device = True, key_states.dtype, key_states.device
            self.buffers = [x.new_zeros(*x.shape[:2], self.length, x.shape[3]) for x in given]
        start, self.filled = self.filled, self.filled + key_states.shape[-2]
        for buffer, states in zip(self.buffers, given, strict=True):
            buffer[:, :, start : self.filled] = states
        keys, values = (buffer[:, :, : self.filled] for buffer in self.buffers)
        return keys, values

    def get_seq_length(self) -> int:
        return self.filled

    def move(self, source: int, row: int) -> None:
        """Let a row hold what another one holds."""
        for buffer in self.buffers:
            buffer[row, :, : self.filled] = buffer[source, :, : self.filled]

    def shrink(self, rows: int) -> None:
        """Forget all rows but the first."""
        self.buffers = [buffer[:rows] for buffer in self.buffers]
