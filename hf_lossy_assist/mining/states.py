"""Final hidden states, read in parallel as at inference.

Token-by-token generation computes slightly different states, in bfloat16 by up to 10 % (Garipov et al. 2025, appendix
C). Training data for heads therefore use no states computed while writing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..core.distributions import Randomness
from ..models.lm_head_hook import lm_head_hook
from .reading import CachedText, Reading, read
from .search import Mismatch

POSITIONS = ("previous", "draft", "target")
"""The state that predicted a token, that after the draft's token, and that after the target's."""

# Variants of a text that are read in one forward.
_VARIANTS = 16


@dataclass(frozen=True, eq=False)
class ReadText:
    """A text read in one forward: the LM head's inputs ``(n, d)`` and logits ``(n, V)``, and the cache."""

    states: Tensor
    logits: Tensor
    memory: CachedText


def read_text(model: PreTrainedModel, tokens: Sequence[int]) -> ReadText:
    reading, states = _read(model, [tokens], [(CachedText(), 0)], len(tokens))
    return ReadText(states[0], reading.logits[0], reading.memories[0])


def variant_states(model: PreTrainedModel, text: ReadText, variants: Sequence[tuple[int, int]]) -> Tensor:
    """Return the states ``(N, d)`` after tokens that replace the text's.

    Each of ``variants`` is an index and the token to read there, after the text before it.
    """
    states = []
    for start in range(0, len(variants), _VARIANTS):
        batch = variants[start : start + _VARIANTS]
        texts = [(*text.memory.tokens[:index], token) for index, token in batch]
        states.append(_read(model, texts, [(text.memory, index) for index, _ in batch], 1)[1][:, -1])
    return torch.cat(states) if states else text.states[:0]


def mismatch_states(
    model: PreTrainedModel,
    prompt: Sequence[int],
    response: Sequence[int],
    mismatches: Sequence[Mismatch],
    positions: Sequence[str] = ("previous", "draft"),
) -> dict[str, Tensor]:
    """Return a model's states ``(N, d)`` at every mismatch, for each of ``positions``.

    ``response`` is the last one of the search (:attr:`.search.Found.last`).
    """
    text = read_text(model, (*prompt, *response))
    places = [len(prompt) + one.index for one in mismatches]
    found = {}
    for position in positions:
        if position == "previous":
            found[position] = text.states[[place - 1 for place in places]]
            continue
        tokens = [getattr(one, f"{position}_token") for one in mismatches]
        found[position] = _after(model, text, list(zip(places, tokens, strict=True)))
    return found


def _after(model: PreTrainedModel, text: ReadText, wanted: Sequence[tuple[int, int]]) -> Tensor:
    states = text.states[[place for place, _ in wanted]].clone()
    others = [i for i, (place, token) in enumerate(wanted) if text.memory.tokens[place] != token]
    if others:
        states[others] = variant_states(model, text, [wanted[i] for i in others])
    return states


@torch.inference_mode()
def _read(
    model: PreTrainedModel, texts: Sequence[Sequence[int]], known: Sequence[tuple[CachedText, int]], k: int
) -> tuple[Reading, Tensor]:
    hook = lm_head_hook(model, Randomness())
    with hook.over(k - 1):
        reading = read(model, texts, known)
    hook.split(reading.logits, k - 1)  # refuses a model that does not call its head as a module
    return reading, hook.hidden
