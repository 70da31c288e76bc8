"""Reading texts of different lengths in one forward, and keeping each one's part of the cache.

Texts are padded on the left, so any model that can generate in batches works, whatever its positions and windows are.

Final hidden states are read in parallel as at inference. Token-by-token generation computes slightly different states,
in bfloat16 by up to 10 % (Garipov et al. 2025, appendix C), so training data for heads use no states computed while
writing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from ..compat.caches import cache_name, new_cache, obstacle_in_cache
from ..compat.models import device_of, forward_accepts, has_recurrent_state
from ..core.distributions import Randomness
from ..core.texts import common_prefix
from ..errors import LossyUnsupportedError
from .lm_head_hook import lm_head_hook

Job = TypeVar("Job")

# The tokens that are read in one forward: more would not be faster, and their logits take memory.
TOGETHER = 512

Layers = tuple[tuple[Tensor, Tensor], ...]
"""Keys and values ``(H, n, D)`` of every layer."""


@dataclass(frozen=True, eq=False)
class CachedText:
    """A text that a model has read, with the layers of its cache."""

    tokens: tuple[int, ...] = ()
    layers: Layers = ()

    def common(self, tokens: Sequence[int]) -> int:
        """Return the length of the longest common prefix."""
        return common_prefix(self.tokens, tuple(tokens))


def check_readable(model: PreTrainedModel) -> None:
    """Refuse a model whose cache can't be cut back to a prefix."""
    refusal = obstacle_in_cache(model, new_cache(model))
    if has_recurrent_state(model):
        refusal = f"{type(model).__name__} keeps a recurrent state, which can't be cut back"
    if refusal or model.config.is_encoder_decoder:
        reason = refusal or f"{type(model).__name__} is an encoder-decoder"
        raise LossyUnsupportedError(f"labels can't be made with this model: {reason}")


def forward(model: PreTrainedModel, ids: Tensor, mask: Tensor, cache: DynamicCache | None = None, **kwargs: Any) -> Any:
    """Run a model over ``ids`` ``(B, k)`` after a cache of ``L`` columns, padded on the left as a whole.

    ``mask`` ``(B, L + k)`` covers both. Positions count the unmasked tokens, as in ``generate()``.
    """
    if forward_accepts(model, "position_ids"):
        kwargs["position_ids"] = (mask.cumsum(-1) - 1).clamp_(min=0)[:, -ids.shape[1] :]
    return model(
        input_ids=ids, attention_mask=mask, use_cache=cache is not None, return_dict=True,
        **{cache_name(model): cache}, **kwargs,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Reading:
    """The logits ``(B, k, V)`` of the last k tokens of texts that were read in one forward, and their caches."""

    logits: Tensor
    memories: list[CachedText]


@torch.inference_mode()
def read(
    model: PreTrainedModel, texts: Sequence[Sequence[int]], known: Sequence[tuple[CachedText, int]], **kwargs: Any
) -> Reading:
    """Read several texts in one forward, apart from their known prefixes.

    ``known`` has a cached text for every text, and the number of its first tokens to reuse. All texts are read from
    equally far before their ends, so parts of known prefixes may be read again.
    """
    k = max(len(text) - n for text, (_, n) in zip(texts, known, strict=True))
    past = [max(len(text) - k, 0) for text in texts]
    width = max(past)
    cache = new_cache(model)
    _fill(cache, [memory.layers for memory, _ in known], past, width)
    ids = torch.zeros((len(texts), k), dtype=torch.long)
    mask = torch.zeros((len(texts), width + k), dtype=torch.long)
    for row, (text, n) in enumerate(zip(texts, past, strict=True)):
        ids[row, k - len(text) + n :] = torch.tensor(text[n:], dtype=torch.long)
        mask[row, width + k - len(text) :] = 1
    logits = forward(model, ids.to(device_of(model)), mask.to(device_of(model)), cache, **kwargs).logits
    memories = []
    for row, text in enumerate(texts):
        first = width + k - len(text)
        held = ((layer.keys[row, :, first:].clone(), layer.values[row, :, first:].clone()) for layer in cache.layers)
        memories.append(CachedText(tuple(text), tuple(held)))
    return Reading(logits, memories)


def grouped(jobs: Iterable[Job], length: Callable[[Job], int], most: int) -> Iterator[list[Job]]:
    """Yield jobs together that are at most twice as long as each other, padded to ``most`` tokens or fewer.

    A job that is longer alone than ``most`` comes alone.
    """
    group: list[Job] = []
    for job in sorted(jobs, key=length, reverse=True):
        if group and ((len(group) + 1) * length(group[0]) > most or 2 * length(job) < length(group[0])):
            yield group
            group = []
        group.append(job)
    if group:
        yield group


def _fill(cache: DynamicCache, layers: Sequence[Layers], past: Sequence[int], width: int) -> None:
    """Fill an empty cache with the first ``past`` tokens of every row, aligned on the right."""
    if width == 0:
        return
    some = next(row for row in layers if row)  # stands in for rows without any past
    for i in range(len(some)):
        rows = [(row or some)[i] for row in layers]
        aligned = (
            torch.stack([pad(row[kind][:, :n], (0, 0, width - n, 0)) for row, n in zip(rows, past, strict=True)])
            for kind in (0, 1)
        )
        cache.update(*aligned, i)


def only_last_logits(model: PreTrainedModel, count: int = 1) -> dict[str, int]:
    """Return the argument of ``forward`` that runs the LM head on the last positions only, if the model has one."""
    return {"logits_to_keep": count} if forward_accepts(model, "logits_to_keep") else {}


CHUNK = 128
"""Positions whose logits :func:`logits_along` holds at once."""


@torch.inference_mode()
def logits_along(model: PreTrainedModel, ids: Tensor, start: int) -> Iterator[Tensor]:
    """Yield a text's logits ``(1, n, V)`` of the tokens from ``start`` on, in chunks; ``ids`` is ``(1, L)``.

    They are float32 on the CPU. A text that does not end with a chunk's last token has a shorter one.
    """
    cache, own = new_cache(model), ids.to(model.device)
    mask = torch.ones_like(own)
    if start > 1:
        forward(model, own[:, : start - 1], mask[:, : start - 1], cache, **only_last_logits(model))
    for first in range(start, ids.shape[1], CHUNK):
        end = min(first + CHUNK, ids.shape[1])
        yield forward(model, own[:, first - 1 : end - 1], mask[:, : end - 1], cache).logits.float().cpu()


def read_prompts(model: PreTrainedModel, prompts: Iterable[tuple[int, ...]]) -> dict[tuple[int, ...], CachedText]:
    """Read every prompt once, but for its last token."""
    memories = dict.fromkeys(prompts, CachedText())
    for group in grouped([prompt for prompt in memories if len(prompt) > 1], len, TOGETHER):
        unread = [(CachedText(), 0)] * len(group)
        reading = read(model, [prompt[:-1] for prompt in group], unread, **only_last_logits(model))
        memories |= zip(group, reading.memories, strict=True)
    return memories


# Variants of a text that are read in one forward.
_VARIANTS = 16


@dataclass(frozen=True, eq=False)
class ReadText:
    """A text read in one forward: the LM head's inputs ``(n, d)`` and logits ``(n, V)``, and the cache."""

    states: Tensor
    logits: Tensor
    memory: CachedText


def read_text(
    model: PreTrainedModel,
    tokens: Sequence[int],
    known: tuple[CachedText, int] = (CachedText(), 0),
    count: int | None = None,
) -> ReadText:
    """Read a text in one forward, apart from its ``known`` tokens, the first ones of another.

    States and logits are those of the last ``count`` tokens, by default of all that are read.
    """
    reading, states = _read_states(model, [tokens], [known], count or len(tokens) - known[1])
    return ReadText(states[0], reading.logits[0], reading.memories[0])


def variant_states(model: PreTrainedModel, text: ReadText, variants: Sequence[tuple[int, int]]) -> Tensor:
    """Return the states ``(N, d)`` after tokens that replace the text's.

    Each of ``variants`` is an index and the token to read there, after the text before it.
    """
    states = []
    for start in range(0, len(variants), _VARIANTS):
        batch = variants[start : start + _VARIANTS]
        texts = [(*text.memory.tokens[:index], token) for index, token in batch]
        states.append(_read_states(model, texts, [(text.memory, index) for index, _ in batch], 1)[1][:, -1])
    return torch.cat(states) if states else text.states[:0]


@torch.inference_mode()
def _read_states(
    model: PreTrainedModel, texts: Sequence[Sequence[int]], known: Sequence[tuple[CachedText, int]], k: int
) -> tuple[Reading, Tensor]:
    hook = lm_head_hook(model, Randomness())
    with hook.over(k - 1):
        reading = read(model, texts, known, **only_last_logits(model, k))
    hook.split(reading.logits, k - 1)  # refuses a model that does not call its head as a module
    return reading, hook.hidden
