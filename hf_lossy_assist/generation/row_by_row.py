"""Decodes the rows of a batch that can't be decoded together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..core.statistics import LossyStats, joined
from ..decoding.loop import Decoding
from ..decoding.outputs import GenerateLossyOutput, side_by_side
from ..decoding.progress import Progress
from .prepared import Prepared

_PER_TOKEN = (
    "scores", "logits", "hidden_states", "attentions", "decoder_hidden_states", "decoder_attentions",
    "cross_attentions",
)  # fmt: skip
_OF_ENCODER = ("encoder_hidden_states", "encoder_attentions")


def decode_row_by_row(
    make: Callable[[int], Decoding], progress: Progress, call: Prepared
) -> tuple[Tensor | GenerateLossyOutput, LossyStats]:
    """Decode rows apart, for drafters that follow one sequence's states and for encoder-decoder models.

    ``make`` turns a row's number into its run; the runs share ``progress``. Rows are decoded one after another. Where
    criteria are asked about the whole batch in order, the shortest text has the next round. Return the output of
    ``generate()``, and the statistics.
    """
    runs: dict[int, Decoding] = {}
    with ExitStack() as stack:
        while (i := _next_row(progress)) is not None:
            if i not in runs:
                runs[i] = make(i)
                stack.enter_context(runs[i].in_use())
            runs[i].round()
        longest = max(progress.generated)
        results, stats = zip(*(runs[i].finish(longest) for i in range(call.batch)), strict=True)
    total = joined(stats)
    if not call.config.return_dict_in_generate:
        return _padded(results, call.padding), total
    given: dict[str, Any] = {"sequences": _padded([x.sequences for x in results], call.padding)}
    first = results[0]
    for name in _PER_TOKEN:
        if first.get(name) is not None:
            given[name] = side_by_side([x[name] for x in results], name)
    for name in _OF_ENCODER:  # which read the whole batch
        if first.get(name) is not None:
            given[name] = call.inputs["encoder_outputs"][name.removeprefix("encoder_")]
    return type(first)(**given).with_stats(total), total


def _next_row(progress: Progress) -> int | None:
    going_on = [i for i, ended in enumerate(progress.ended) if not ended]
    return min(going_on, key=lambda i: progress.generated[i] if progress.asks_in_order else i, default=None)


def _padded(sequences: Sequence[Tensor], padding: int) -> Tensor:
    return pad_sequence([x[0] for x in sequences], batch_first=True, padding_value=padding)
