"""Decodes the rows of a batch that can't be decoded together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..core.statistics import LossyStats, joined
from ..decoding.loop import Decoding
from ..decoding.outputs import GenerateLossyOutput, side_by_side
from ..decoding.progress import Stopping
from ..models.prepared import Prepared

_PER_TOKEN = (
    "scores", "logits", "hidden_states", "attentions", "decoder_hidden_states", "decoder_attentions",
    "cross_attentions",
)  # fmt: skip
_PER_LAYER = ("encoder_hidden_states", "encoder_attentions")


class RowByRow:
    """Decodes rows apart, for drafters that follow one sequence's states and for encoder-decoder models.

    Rows are decoded one after another. Where criteria are asked about the whole batch in order, the shortest text has
    the next round. ``make`` turns a row's number into its run; the runs share ``stopping``.
    """

    def __init__(self, make: Callable[[int], Decoding], stopping: Stopping, call: Prepared) -> None:
        self.make = make
        self.stopping = stopping
        self.call = call

    def decode(self) -> tuple[Tensor | GenerateLossyOutput, LossyStats]:
        """Return the output of ``generate()``, and the statistics."""
        runs: dict[int, Decoding] = {}
        with ExitStack() as stack:
            while (i := self._next_row()) is not None:
                if i not in runs:
                    runs[i] = self.make(i)
                    stack.enter_context(runs[i].in_use())
                runs[i].round()
            results, stats = zip(*(runs[i].finish() for i in range(self.call.batch)), strict=True)
        total = joined(stats)
        if not self.call.config.return_dict_in_generate:
            return self._padded(results), total
        return self._together(results, total), total

    def _next_row(self) -> int | None:
        going_on = [i for i, ended in enumerate(self.stopping.ended) if not ended]
        in_order = self.stopping.asks_in_order
        return min(going_on, key=lambda i: self.stopping.generated[i] if in_order else i, default=None)

    def _padded(self, sequences: Sequence[Tensor]) -> Tensor:
        return pad_sequence([x[0] for x in sequences], batch_first=True, padding_value=self.call.padding)

    def _together(self, results: Sequence[Any], stats: LossyStats) -> Any:
        first = results[0]
        given: dict[str, Any] = {"sequences": self._padded([x.sequences for x in results])}
        for name in _PER_TOKEN:
            if first.get(name) is not None:
                given[name] = side_by_side([x[name] for x in results], name)
        for name in _PER_LAYER:
            if first.get(name) is not None:
                given[name] = tuple(torch.cat(layers) for layers in zip(*(x[name] for x in results), strict=True))
        return type(first)(**given).with_stats(stats)
