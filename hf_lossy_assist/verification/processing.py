"""The user's logits processors, applied to all positions of a round."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import LogitsProcessorList

from ..compat import PREFIX_FREE_PROCESSORS


def process(processors: LogitsProcessorList, ids: Tensor, logits: Tensor) -> Tensor:
    """Return the processed logits of the last positions of a sequence.

    Parameters
    ----------
    processors
        The user's processors; they see the prefix of each position, as in plain ``generate()``.
    ids
        ``(B, L)`` the prompt, everything committed, and the tokens up to the last position.
    logits
        ``(B, m, V)`` float32; ``logits[:, -1]`` follows ``ids``, ``logits[:, 0]`` follows ``ids[:, : L-m+1]``.
        May be overwritten.
    """
    if not processors or logits.shape[1] == 0:
        return logits
    batch, positions, vocabulary = logits.shape
    if _prefix_free(processors):
        flat = logits.reshape(batch * positions, vocabulary)
        return processors(ids[:, -1:].expand(batch, positions).reshape(-1, 1), flat).view_as(logits)
    ids = ids.clone()  # a processor may keep what it is shown, and the text's memory is written to again
    start = ids.shape[1] - positions + 1
    return torch.stack([processors(ids[:, : start + i], logits[:, i]) for i in range(positions)], dim=1)


def process_paths(processors: LogitsProcessorList, ids: Tensor, logits: Tensor) -> Tensor:
    """Do the same for several laws at every position.

    Parameters
    ----------
    processors, ids
        As for :func:`process`.
    logits
        ``(B, K, m, V)`` in any precision, which they keep if there are no processors. May be overwritten.
    """
    if not processors:
        return logits
    logits = logits.float()
    if _prefix_free(processors):
        return process(processors, ids, logits.flatten(1, 2)).view_as(logits)
    return torch.stack([process(processors, ids, path) for path in logits.unbind(1)], dim=1)


def _prefix_free(processors: LogitsProcessorList) -> bool:
    return all(type(processor) in PREFIX_FREE_PROCESSORS for processor in processors)
