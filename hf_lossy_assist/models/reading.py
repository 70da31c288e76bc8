"""Reading texts of different lengths in one forward, and keeping each one's part of the cache.

Texts are padded on the left, so any model that can generate in batches works, whatever its positions and windows are.

Final hidden states are read in parallel as at inference. Token-by-token generation computes slightly different states,
in bfloat16 by up to 10 % (Garipov et al. 2025, appendix C), so training data for heads use no states computed while
writing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
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


Known = tuple[CachedText, int]
"""A text that was read, and how many of its first tokens count."""

NOTHING: Known = (CachedText(), 0)


def check_readable(model: PreTrainedModel) -> None:
    """Refuse a model whose cache can't be cut back to a prefix."""
    refusal = obstacle_in_cache(model, new_cache(model), {})
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
    """What a model says along the last k tokens of texts that it has read in one forward.

    Attributes
    ----------
    logits
        ``(B, k, V)``.
    states
        ``(B, k, d)`` inputs of the LM head; None if they were not asked for.
    cache, texts
        The model's cache after all tokens of the texts, which are its rows.
    """

    logits: Tensor
    states: Tensor | None
    cache: DynamicCache
    texts: Sequence[Sequence[int]]

    @cached_property
    def memories(self) -> list[CachedText]:
        return [cached_text(self.cache, row, text) for row, text in enumerate(self.texts)]


@torch.inference_mode()
def read_text(
    model: PreTrainedModel,
    texts: Sequence[Sequence[int]],
    known: Sequence[Known] | None = None,
    *,
    last: int | None = None,
    states: bool = False,
) -> Reading:
    """Read several texts in one forward, apart from their ``known`` prefixes.

    All texts are read from equally far before their ends, so parts of known prefixes may be read again. Logits, and
    ``states`` if they are asked for, are those of the ``last`` tokens, by default of all that are read.
    """
    known = [NOTHING] * len(texts) if known is None else known
    k = max(len(text) - n for text, (_, n) in zip(texts, known, strict=True))
    past = [max(len(text) - k, 0) for text in texts]
    width, last = max(past), k if last is None else last
    cache = filled(model, [(memory, n) for (memory, _), n in zip(known, past, strict=True)])
    ids = torch.zeros((len(texts), k), dtype=torch.long)
    mask = torch.zeros((len(texts), width + k), dtype=torch.long)
    for row, (text, n) in enumerate(zip(texts, past, strict=True)):
        ids[row, k - len(text) + n :] = torch.tensor(text[n:], dtype=torch.long)
        mask[row, width + k - len(text) :] = 1
    hook = lm_head_hook(model, Randomness()) if states else None
    device = device_of(model)
    with hook.over(last - 1) if states else nullcontext():
        logits = forward(model, ids.to(device), mask.to(device), cache, **_last_logits(model, last)).logits[:, -last:]
    if states:
        hook.split(logits, last - 1)  # refuses a model that does not call its head as a module
    return Reading(logits, hook.hidden if states else None, cache, texts)


def remembered(
    model: PreTrainedModel, texts: Sequence[Sequence[int]], known: Sequence[Known] | None = None
) -> list[CachedText]:
    """Return what a model remembers of texts, read in forwards of up to :data:`TOGETHER` tokens."""
    known = [NOTHING] * len(texts) if known is None else known
    found = [memory for memory, _ in known]
    unread = [row for row, (text, (_, n)) in enumerate(zip(texts, known, strict=True)) if len(text) > n]
    for group in grouped(unread, lambda row: len(texts[row]) - known[row][1], TOGETHER):
        reading = read_text(model, [texts[row] for row in group], [known[row] for row in group], last=1)
        for row, memory in zip(group, reading.memories, strict=True):
            found[row] = memory
    return found


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


def filled(model: PreTrainedModel, known: Sequence[Known]) -> DynamicCache:
    """Return a cache whose rows hold the known tokens, aligned on the right."""
    cache, width = new_cache(model), max(n for _, n in known)
    some = next((memory.layers for memory, n in known if n), ())  # stands in for rows without any past
    for i in range(len(some)):
        rows = [((memory.layers or some)[i], n) for memory, n in known]
        aligned = (torch.stack([pad(row[kind][:, :n], (0, 0, width - n, 0)) for row, n in rows]) for kind in (0, 1))
        cache.update(*aligned, i)
    return cache


def cached_text(cache: DynamicCache, row: int, tokens: Sequence[int]) -> CachedText:
    """Return a row's text with a copy of its part of a cache, which it ends."""
    first = cache.get_seq_length() - len(tokens)
    held = ((layer.keys[row, :, first:].clone(), layer.values[row, :, first:].clone()) for layer in cache.layers)
    return CachedText(tuple(tokens), tuple(held))


def _last_logits(model: PreTrainedModel, count: int) -> dict[str, int]:
    """Return the argument of ``forward`` that runs the LM head on the last positions only, if the model has one."""
    return {"logits_to_keep": count} if forward_accepts(model, "logits_to_keep") else {}


CHUNK = 128
"""Positions whose logits :func:`logits_along` holds at once."""


@torch.inference_mode()
def logits_along(model: PreTrainedModel, ids: Tensor, start: int) -> Iterator[Tensor]:
    """Yield a text's logits ``(1, n, V)`` of the tokens from ``start`` on, in chunks; ``ids`` is ``(1, L)``.

    They are float32 on the CPU. A text that does not end with a chunk's last token has a shorter one.
    """
    cache, own, read = new_cache(model), ids.to(device_of(model)), 0
    mask = torch.ones_like(own)
    for first in range(start, ids.shape[1], CHUNK):
        end = min(first + CHUNK, ids.shape[1])
        count = end - first
        said = forward(model, own[:, read : end - 1], mask[:, : end - 1], cache, **_last_logits(model, count)).logits
        yield said[:, -count:].float().cpu()
        read = end - 1


# Variants of a text that are read in one forward.
_VARIANTS = 16


def variant_states(model: PreTrainedModel, text: CachedText, variants: Sequence[tuple[int, int]]) -> list[Tensor]:
    """Return the states ``(d,)`` after tokens that replace the text's.

    Each of ``variants`` is an index and the token to read there, after the text before it.
    """
    found: list[Tensor] = []
    for start in range(0, len(variants), _VARIANTS):
        batch = variants[start : start + _VARIANTS]
        texts, known = [(*text.tokens[:index], token) for index, token in batch], [(text, index) for index, _ in batch]
        found += read_text(model, texts, known, last=1, states=True).states[:, -1]
    return found
