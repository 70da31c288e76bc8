"""What a window costs, counted in calls and their median times, which noise does not move."""

from __future__ import annotations

import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from ..enabling import enabled
from ..pairs import Pair
from ..pairs.evaluation import MAX_NEW_TOKENS
from ..tasks import Example

Call = tuple[str, int]
"""Which model, and how many tokens it read."""


@dataclass(frozen=True)
class WindowCost:
    """One window over all problems.

    Attributes
    ----------
    window
        γ, or ``"auto"``.
    draft_calls, target_calls
        Forward passes after the prompts'.
    tokens, mean_accepted
        Output tokens, and drafted tokens kept per round.
    seconds
        The calls, each at the median time of calls of its model over as many tokens.
    """

    window: int | str
    draft_calls: int
    target_calls: int
    tokens: int
    mean_accepted: float
    seconds: float


@dataclass(eq=False)
class CallLog:
    """Counts and times the forward passes of target and draft, prompts' left out."""

    times: dict[Call, list[float]] = field(default_factory=lambda: defaultdict(list))
    counts: Counter[Call] = field(default_factory=Counter)
    _began: float = 0.0

    @contextmanager
    def watching(self, pair: Pair) -> Iterator[None]:
        """Watch both models inside the block."""
        with ExitStack() as stack:
            for role, model in (("target", pair.target), ("draft", pair.draft)):
                stack.callback(model.register_forward_pre_hook(self._enter, with_kwargs=True).remove)
                stack.callback(model.register_forward_hook(self._leave(role), with_kwargs=True).remove)
            yield

    def _enter(self, model: PreTrainedModel, args: Any, kwargs: dict[str, Any]) -> None:
        self._began = time.perf_counter()

    def _leave(self, role: str) -> Callable[..., None]:
        def hook(model: PreTrainedModel, args: Any, kwargs: dict[str, Any], output: Any) -> None:
            tokens = kwargs["input_ids"].shape[1]
            if kwargs["past_key_values"].get_seq_length() > tokens:
                self.times[role, tokens].append(time.perf_counter() - self._began)
                self.counts[role, tokens] += 1

        return hook


@torch.inference_mode()
def measure(
    pair: Pair,
    windows: Sequence[int | str],
    examples: Sequence[Example],
    *,
    mode: str = "lossless",
    on_answer: Callable[[], None] = lambda: None,
) -> list[WindowCost]:
    """Answer every problem with every window, interleaved, greedily.

    Parameters
    ----------
    pair
        Models and task.
    windows
        γ, or ``"auto"``.
    examples
        The problems.
    mode
        ``lossy_mode``.
    on_answer
        Told after every answer.
    """
    log = CallLog()
    counted: dict[int | str, Counter[Call]] = {window: Counter() for window in windows}
    stats: dict[int | str, list[Any]] = {window: [] for window in windows}
    with enabled(pair.target), log.watching(pair):
        for example in examples:
            inputs = pair.tokenizer(example.prompt, return_tensors="pt").to(pair.target.device)
            for window in windows:
                log.counts.clear()
                out = pair.target.generate(
                    **inputs, assistant_model=pair.draft, lossy_mode=mode, num_assistant_tokens=window,
                    lossy_config={"break_even": False}, do_sample=False, max_new_tokens=MAX_NEW_TOKENS,
                    return_dict_in_generate=True,
                )  # fmt: skip
                counted[window].update(log.counts)
                stats[window].append(out.lossy_stats)
                on_answer()
    median = {call: statistics.median(times) for call, times in log.times.items()}
    return [_row(window, counted[window], stats[window], median) for window in windows]


def _row(window: int | str, calls: Counter[Call], stats: Sequence[Any], median: dict[Call, float]) -> WindowCost:
    by_role = {role: sum(n for (who, _), n in calls.items() if who == role) for role in ("draft", "target")}
    rounds = sum(run.rounds for run in stats)
    return WindowCost(
        window=window,
        draft_calls=by_role["draft"],
        target_calls=by_role["target"],
        tokens=sum(len(run.trace) for run in stats),
        mean_accepted=sum(run.accepted for run in stats) / max(1, rounds),
        seconds=sum(n * median[call] for call, n in calls.items()),
    )
