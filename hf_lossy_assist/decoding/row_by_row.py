"""The rows of a batch that can't be decoded together, one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..call.prepared import Prepared
from ..stats import LossyStats, joined
from .outputs import GenerateLossyOutput, side_by_side

_PER_TOKEN = (
    "scores", "logits", "hidden_states", "attentions", "decoder_hidden_states", "decoder_attentions",
    "cross_attentions",
)  # fmt: skip
_PER_LAYER = ("encoder_hidden_states", "encoder_attentions")


class Loop(Protocol):
    """What decodes a call."""

    def decode(self) -> tuple[Tensor | GenerateLossyOutput, LossyStats]:
        """Return what ``generate()`` is to return, and the statistics."""


class OneByOne:
    """For drafters that follow one sequence's states, and for encoder-decoder models.

    Parameters
    ----------
    loops
        Make every row's loop.
    call
        The whole batch.
    """

    def __init__(self, loops: Sequence[Callable[[], Loop]], call: Prepared) -> None:
        self.loops = loops
        self.call = call

    def decode(self) -> tuple[Tensor | GenerateLossyOutput, LossyStats]:
        results, stats = zip(*(make().decode() for make in self.loops), strict=True)
        total = joined(stats)
        if not self.call.config.return_dict_in_generate:
            return self._padded(results), total
        return self._together(results, total), total

    def _padded(self, sequences: Sequence[Tensor]) -> Tensor:
        return pad_sequence([x[0] for x in sequences], batch_first=True, padding_value=self.call.padding)

    def _together(self, results: Sequence[Any], stats: LossyStats) -> Any:
        first = results[0]
        given: dict[str, Any] = {"sequences": self._padded([x.sequences for x in results])}
        for name in _PER_TOKEN:
            if first.get(name) is not None:
                given[name] = side_by_side([x[name] for x in results])
        for name in _PER_LAYER:
            if first.get(name) is not None:
                given[name] = tuple(torch.cat(layers) for layers in zip(*(x[name] for x in results), strict=True))
        return type(first)(**given).with_stats(stats)
