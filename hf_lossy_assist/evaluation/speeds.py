"""What the steps of decoding cost on a machine, and how fast replayed texts are by that."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
from transformers import StoppingCriteriaList

from ..compat.models import device_of
from ..pairs import Pair
from ..progress import track
from .modes import DecodingMode
from .quality import Interval, jackknife, t_quantile
from .replay import Walk
from .requests import batches_of, run_request

STEADY = 1.25
"""How many times as long as in another repeat a step may take on a machine that is steady."""

KEEP_ALL = DecodingMode("everything", "thresholds", {"threshold_single": 0}, 5)
"""The mode whose rounds are timed: each has all of its tokens."""

_ROUNDS = 5  # that a step's time is the mean of
_LEAST = 1e-9  # seconds of a step whose time is lost in noise: then nothing is sure, and 0 would have no logarithm


@dataclass(frozen=True)
class Costs:
    """Seconds of the steps of a round, for texts of one length.

    Examples
    --------
    >>> costs = Costs(0.1, {1: 1.0, 5: 1.2})
    >>> round(costs.round(4), 2), round(costs.round(2), 2), round(costs.share, 2)
    (1.6, 1.3, 0.1)
    """

    drafted: float  # a drafted token
    target: Mapping[int, float]  # all else in a round, by the number of tokens that the target reads; of 1: it alone
    clock: str = "wall"  # or "thread", the computing time of the thread that calls

    def read(self, tokens: float) -> float:
        """Return the seconds of a round without its draft; between two known numbers of tokens it is interpolated."""
        known = sorted(self.target)
        return float(np.interp(tokens, known, [self.target[n] for n in known]))

    def round(self, gamma: int) -> float:
        """Return the seconds of a round of ``gamma`` drafted tokens; 0 is a token of the target alone."""
        return gamma * self.drafted + self.read(gamma + 1)

    @property
    def share(self) -> float:
        """The time of a drafted token as a share of a token of the target, c."""
        return self.drafted / self.read(1)


def measure_costs(pair: Pair, text: Sequence[int], length: int, gammas: Iterable[int], repeats: int = 3) -> list[Costs]:
    """Time calls of ``generate()`` with drafts of so many tokens, with the target alone, and with the draft alone.

    All take turns. A round's time is what further rounds add to a call of one, so that reading the prompt does not
    count. A drafted token costs what a token of the draft alone does. Where the time on the wall is not steady, the
    computing time of this thread stands for it on a CPU, if that is steadier.

    Parameters
    ----------
    text
        Token ids of a prompt, brought to ``length``.
    repeats
        How often everything is timed; each repeat has costs of its own.
    """
    (batch,) = batches_of([resized([*text], length)], device=device_of(pair.target))
    # Nothing but the limit ends a call: no model writes this token.
    never = pair.target.get_input_embeddings().num_embeddings
    keywords = {"eos_token_id": never, "stopping_criteria": StoppingCriteriaList()}
    batch = replace(batch, ending=SimpleNamespace(keywords=keywords, cut=lambda tokens: tokens))
    alone = DecodingMode()
    modes = {
        1: alone, "draft": replace(alone, answers="draft"),
        **{gamma + 1: replace(KEEP_ALL, gamma=gamma) for gamma in sorted({*gammas} - {0})},
    }  # fmt: skip

    clocks = {"wall": time.perf_counter}
    if device_of(pair.target).type == "cpu":
        clocks["thread"] = time.thread_time

    def now() -> Any:
        return np.array([clock() for clock in clocks.values()])

    def seconds(mode: DecodingMode, rounds: int) -> Any:
        return run_request(pair, mode, batch, rounds * ((mode.gamma or 0) + 1), now).seconds

    found: dict[Any, list[list[float]]] = {key: [] for key in modes}
    turns = [*modes] * (repeats + 1)
    timed = ([seconds(modes[key], rounds) for rounds in (1, 1 + _ROUNDS)] for key in turns)
    for number, (first, more) in enumerate(track(timed, total=len(turns), what="timing")):
        if number >= len(modes):  # after a turn to warm up
            found[turns[number]].append(((more - first).clip(min=_LEAST) / _ROUNDS).tolist())
    drafted = found.pop("draft")

    def by(at: int, name: str) -> list[Costs]:
        return [
            Costs(d[at], {n: max(_LEAST, own[r][at] - (n - 1) * d[at]) for n, own in found.items()}, name)
            for r, d in enumerate(drafted)
        ]

    wall, *others = (by(at, name) for at, name in enumerate(clocks))
    return wall if spread_of(wall)[0] <= STEADY else min(wall, *others, key=lambda costs: spread_of(costs)[0])


def resized(ids: list[int], length: int) -> list[int]:
    """Bring a prompt to so many tokens: repeat it, or cut its beginning after the first token.

    Examples
    --------
    >>> resized([1, 2, 3], 5), resized([1, 2, 3, 4], 3), resized([7], 2)
    ([1, 2, 3, 2, 3], [1, 3, 4], [7, 7])
    """
    rest, wanted = ids[1:] or ids, length - 1
    rest = rest * -(-wanted // len(rest))
    return ids[:1] + rest[len(rest) - wanted :]


def spread_of(repeats: Sequence[Costs]) -> tuple[float, str]:
    """Return how many times as long as in another repeat the least steady step took, and what that is, in words."""
    steps = {"a drafted token": [one.drafted for one in repeats]}
    for n in repeats[0].target if repeats else ():
        steps[f"a round over {n} token{'s' * (n > 1)}"] = [one.read(n) for one in repeats]
    found = [(max(each) / min(each), name, each) for name, each in steps.items() if min(each, default=0) > 0]
    times, name, each = max(found, default=(1.0, "", [0.0]))
    return times, f"{name} took {1000 * min(each):.4g} to {1000 * max(each):.4g} ms"


def merged(repeats: Sequence[Costs]) -> Costs:
    """Return the medians of costs over repeats, without those of the target that fall as it reads more tokens.

    A target can read a token together with others that nobody asked for, so more tokens never take less time. What
    falls is noise: neighbours are pooled until nothing does (isotonic regression).

    Examples
    --------
    >>> merged([Costs(0.1, {1: 3.0, 2: 1.0, 6: 4.0})]).target
    {1: 2.0, 2: 2.0, 6: 4.0}
    """
    from sklearn.isotonic import isotonic_regression  # of the extra `lab`

    widths = sorted(repeats[0].target)
    rising = isotonic_regression([median(one.target[n] for one in repeats) for n in widths]).tolist()
    return Costs(median(one.drafted for one in repeats), dict(zip(widths, rising, strict=True)), repeats[0].clock)


@dataclass(frozen=True, eq=False)
class Speeds:
    """The target's texts, what steps cost here, and the ratios of speeds that follow.

    Attributes
    ----------
    tokens
        ``(B,)`` tokens of the texts.
    costs
        Seconds of the steps of decoding.
    repeats
        The costs that each repeat of the timing has seen.
    """

    tokens: np.ndarray
    costs: Costs
    repeats: Sequence[Costs] = ()

    @cached_property
    def alone(self) -> Walk:
        """The target alone, each of whose rounds is a token."""
        nothing = np.zeros(len(self.tokens))
        return Walk(0, self.tokens[:, None], *[nothing] * 4)

    def seconds(self, walk: Walk, costs: Costs | None = None) -> np.ndarray:
        """Return the seconds of each text, without its prompt."""
        rounds = [(costs or self.costs).round(size) for size in range(walk.sizes.shape[1])]
        return walk.sizes @ rounds

    def times(self, own: Walk, base: Walk) -> Interval:
        """Return how many times as fast as ``base`` is ``own``, and where that is in 95 % of runs on other prompts.

        Those are as many, so prompts count twice; a text that has left the target's is one more draw; and repeats of
        the timing differ. Variances add up, and Student's t has the degrees of freedom of Welch and Satterthwaite. A
        round emits at most a token more than it drafts, which bounds the ratio.
        """
        if own is base:
            return Interval(1.0, 1.0, 1.0)
        both = np.stack([self.seconds(base), self.seconds(own)], 1)
        n, r = len(both), len(self.repeats)
        logs = [np.log(self.seconds(base, one).sum() / self.seconds(own, one).sum()) for one in self.repeats]
        parts = [(2 * jackknife(both, _log), n - 1), *((self._redrawn(each), n - 1) for each in (own, base))]
        parts += [(np.var(logs, ddof=1) / r, r - 1)] if r > 1 else []
        known = [(variance, freedom) for variance, freedom in parts if variance > 0]
        half = 0.0
        if known:
            variance = sum(each for each, _ in known)
            freedom = variance**2 / sum(each**2 / count for each, count in known)
            half = t_quantile(round(min(freedom, 1e4), 1)) * math.sqrt(variance)
        most = own.sizes.shape[1] * both[:, 0].sum() / self.seconds(self.alone).sum()
        estimate = float(_log(both.sum(0)))
        return Interval(*(min(most, math.exp(x)) for x in (estimate, estimate - half, estimate + half)))

    def _redrawn(self, walk: Walk) -> float:
        """Return what the logarithm of a speed varies by, since texts differ from those of the replay."""
        rates = np.stack([self.tokens, self.seconds(walk)], 1)
        after = walk.others / (walk.others + 1)  # a text's share after its first other token, if they stand anywhere
        return float((after * self.tokens).sum() / self.tokens.sum()) * jackknife(rates, _log)

    @property
    def steady(self) -> bool:
        """Whether repeats agree."""
        return spread_of(self.repeats)[0] <= STEADY

    @property
    def entry(self) -> dict[str, Any]:
        """What ``advice.json`` has."""
        costs = self.costs
        return {
            "draft": costs.drafted, "draft_cost": costs.share, "repeats": len(self.repeats),
            "target": {str(n): costs.read(n) for n in sorted(costs.target)}, "spread": spread_of(self.repeats)[0],
            "clock": costs.clock,
        }  # fmt: skip


def _log(sums: np.ndarray) -> np.ndarray:
    """Return the logarithm of the first column's sum over the second's."""
    return np.log(sums[..., 0] / sums[..., 1])
