"""The cost of each number of drafted tokens, in calls and their median times, which noise does not move."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..stats import LossyStats, joined
from .modes import DecodingMode, Models
from .requests import PromptBatch, run_request

Call = tuple[str, int]
"""Which model, and how many tokens it read."""


@dataclass(frozen=True)
class DraftLengthCost:
    """The cost of one number of drafted tokens over all prompts."""

    gamma: int | str  # drafted tokens per round, or ``"auto"``
    # Forward passes after the prompts'.
    draft_calls: int
    target_calls: int
    tokens: int
    mean_accepted: float
    seconds: float  # the calls, each at the median time of calls of its model over as many tokens


def measure(
    models: Models,
    gammas: Sequence[int | str],
    prompts: Sequence[PromptBatch],
    max_new_tokens: int = 100,
    *,
    rule: str = "lossless",
    on_answer: Callable[[], None] = lambda: None,
) -> list[DraftLengthCost]:
    """Answer every prompt with every number of drafted tokens, interleaved, greedily.

    A batch of ``prompts`` has one prompt.
    """
    times: dict[Call, list[float]] = defaultdict(list)
    counts: dict[int | str, Counter[Call]] = {gamma: Counter() for gamma in gammas}
    stats: dict[int | str, list[LossyStats]] = {gamma: [] for gamma in gammas}
    for prompt in prompts:
        for gamma in gammas:
            response = run_request(models, DecodingMode(rule, rule, gamma=gamma), prompt, max_new_tokens, meter=True)
            for role, forwards in response.forwards.items():
                # The first pass of each model reads the prompt.
                for tokens, seconds in zip(forwards.tokens[1:], forwards.calls[1:], strict=True):
                    times[role, tokens].append(seconds)
                    counts[gamma][role, tokens] += 1
            stats[gamma].append(response.stats)
            on_answer()
    median = {call: statistics.median(seconds) for call, seconds in times.items()}
    rows = []
    for gamma in gammas:
        calls, run = counts[gamma], joined(stats[gamma])
        draft, target = (sum(n for (who, _), n in calls.items() if who == role) for role in ("draft", "target"))
        seconds = sum(n * median[call] for call, n in calls.items())
        rows.append(DraftLengthCost(gamma, draft, target, len(run.trace), run.mean_accepted, seconds))
    return rows
