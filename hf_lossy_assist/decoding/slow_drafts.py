"""Says so where drafting has cost more time than it has saved."""

from __future__ import annotations

import statistics
import weakref
from collections.abc import Mapping, Sequence
from contextvars import ContextVar

from torch import nn

from ..errors import warn

ROUNDS = 16
"""Rounds of a call that may be warned of."""
CLEARLY = 0.9
"""The target alone is clearly faster if its time per token is below this share of the call's."""

measuring: ContextVar[bool] = ContextVar("measuring", default=False)
"""Whether calls are compared with the target alone anyhow, so that nothing is warned of."""

_warned: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def warn_of_loss(target: nn.Module, laps: Sequence[Mapping[str, float]], tokens: int, accepted: int) -> None:
    """Warn, once for each target, if the target alone would have written the longest row's ``tokens`` faster.

    ``laps`` are the seconds of each round's stages, ``accepted`` how many drafted tokens all rows kept. A plain token
    takes one forward over one token, so at most a round without its draft. Medians keep out rounds in which something
    was compiled, and a text's first round, which reads the prompt. Where a device runs behind the host, a draft's time
    is that of its launches, so drafts look cheaper than they are, and fewer calls are warned of.
    """
    if measuring.get() or len(laps) < ROUNDS or target in _warned:
        return
    whole = statistics.median(sum(lap.values()) for lap in laps)
    plain = statistics.median(sum(lap.values()) - lap["drafting"] for lap in laps)
    own = whole * len(laps) / tokens
    if plain < CLEARLY * own:
        _warned.add(target)
        warn(
            f"speculative decoding was slower here than the target alone: a token took {1000 * own:.4g} ms, but "
            f"the target alone needs at most {1000 * plain:.4g} ms. A round wrote {tokens / len(laps):.2f} tokens, and "
            f"its draft took {1 - plain / whole:.0%} of its time. `lossy-assist advise` predicts which settings pay; "
            + (
                "another `num_assistant_tokens` or a smaller draft may help"
                if accepted
                else "no drafted token was kept, so look first whether the draft has the target's tokenizer"
            )
        )
