"""What the steps of decoding cost on this machine: real calls are timed round by round, and medians are taken."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList

from ..compat import CandidateGenerator
from ..decoding.pace import Pace, watched
from ..values import Rule
from .answers import Answer
from .meters import Clock, synchronizer
from .modes import DecodingMode, Models
from .requests import batches_of, run_request

GAMMAS = (0, 1, 2, 3, 5, 8, 12, 16, 24, 32)
"""The draft lengths that :func:`measure_costs` times; 0 is the target alone."""

KEEP_ALL = DecodingMode("everything", "thresholds", {"threshold_single": 0}, 5)
"""The mode that it times: each of its rounds has all of its tokens."""


class FreeTokens(CandidateGenerator):
    """Drafts so many tokens, whichever they are, without a forward: what a round of a looked-up draft costs."""

    def __init__(self, count: int) -> None:
        self.count = count

    def get_candidates(self, input_ids: Tensor, **_: Any) -> tuple[Tensor, None]:
        return torch.cat([input_ids, input_ids[:, -1:].expand(-1, self.count)], dim=1), None

    def update_candidate_strategy(self, input_ids: Tensor, scores: Tensor, num_matches: int) -> None:
        return


@dataclass(frozen=True)
class FreeDrafts(DecodingMode):
    """A mode whose drafts cost nothing."""

    def keywords(self, models: Models, seed: int) -> dict[str, Any]:
        free = {"candidate_generator": lambda **_: FreeTokens(self.gamma)} if self.gamma else {}
        return super().keywords(models, seed) | free


FREE = FreeDrafts(KEEP_ALL.label, KEEP_ALL.rule, KEEP_ALL.settings, KEEP_ALL.gamma)
"""What it times where nothing has to run for a draft."""


_AUTO = (2, 5, 8, 15)  # where a draft's length varies
_ROUNDS = 6  # of each call; the first and the last do not count
_REPEATS = 2
_GAMMAS = Rule("ints >= 0, none twice", lambda x: len({*x}) == len(x) > 0 and all(type(g) is int and g >= 0 for g in x))
_LENGTHS = Rule("ascending ints >= 1", lambda x: sorted({*x}) == [*x] and len(x) > 0 and x[0] >= 1)


@dataclass(frozen=True)
class Costs:
    """Seconds of the steps of a call, by the length of its text.

    Between two measured lengths, and between two measured numbers of tokens, costs are interpolated; beyond the last
    they stay. Those that :func:`merged` returns never fall as the target reads more tokens.

    Examples
    --------
    >>> costs = Costs((100, 300), (1.0, 3.0), (0.5, 2.5), (0.02, 0.04), {1: (0.1, 0.1), 5: (0.2, 0.3)})
    >>> round(costs.round(4, length=100), 3), round(costs.round(4, length=200), 3)
    (0.28, 0.37)
    >>> round(costs.answer(prompt=100, tokens=20, rounds=5, drafted=20), 3)
    2.445
    >>> round(costs.answer(prompt=100, tokens=20, rounds=20, drafted=0), 3)
    2.5
    """

    lengths: tuple[int, ...]  # tokens of the text, ascending; each of the following has a value for each
    prompt: tuple[float, ...]  # what the first round takes more than the others, where a draft reads the prompt too
    prompt_alone: tuple[float, ...]  # the same for the target alone
    drafted: tuple[float, ...]  # a drafted token
    # All else in a round, by the number of tokens that the target reads in it: its forward, the rule and the loop. For
    # one token, it is a token of the target alone.
    target: Mapping[int, tuple[float, ...]]
    block: tuple[float, ...] = ()  # a draft of one forward, however many tokens it has; then drafted tokens are free

    def __post_init__(self) -> None:
        object.__setattr__(self, "block", self.block or (0.0,) * len(self.lengths))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Costs:
        """Return costs that a file has."""
        target = {int(n): tuple(each) for n, each in values["target"].items()}
        return cls(**{name: tuple(value) for name, value in values.items() if name != "target"}, target=target)

    def with_draft_cost(self, share: float) -> Costs:
        """Return the costs on hardware where a drafted token, or a block, takes ``share`` of a target's token."""
        dear = tuple(share * self.read(1, length) for length in self.lengths)
        return replace(self, **{"block" if any(self.block) else "drafted": dear})

    def token(self, length: float) -> float:
        """Return the seconds of a drafted token, or of a block of them."""
        return self._at(self.drafted, length) + self._at(self.block, length)

    def _at(self, seconds: tuple[float, ...], length: float) -> float:
        return float(np.interp(length, self.lengths, seconds))

    def read(self, tokens: float, length: float) -> float:
        """Return the seconds of a round without its draft, in which the target reads so many tokens."""
        known = sorted(self.target)
        return float(np.interp(tokens, known, [np.interp(length, self.lengths, self.target[n]) for n in known]))

    def round(self, gamma: float, length: float) -> float:
        """Return the seconds of a round of ``gamma`` drafted tokens; 0 is a token of the target alone."""
        draft = gamma * self._at(self.drafted, length) + min(gamma, 1) * self._at(self.block, length)
        return draft + self.read(gamma + 1, length)

    def answer(self, prompt: int, tokens: int, rounds: int, drafted: int) -> float:
        """Return the seconds of an answer of so many ``tokens`` to a ``prompt`` of so many."""
        if not rounds:
            return 0.0
        first = np.interp(prompt, self.lengths, self.prompt if drafted else self.prompt_alone)
        return float(first) + rounds * self.round(drafted / rounds, prompt + tokens / 2)


def measure_costs(models: Models, text: Sequence[int], **timing: Any) -> Costs:
    """Return the :func:`merged` costs of :func:`repeated_costs`, whose keywords these are.

    Examples
    --------
    >>> from hf_lossy_assist import pairs
    >>> pair = pairs.load("arithmetic")
    >>> text = pair.tokenizer("Question: Ada has 3 pens.")["input_ids"]
    >>> costs = measure_costs(Models(pair.target, pair.draft), text, lengths=(16,), gammas=(0, 4), repeats=1)
    >>> sorted(costs.target), 0 < costs.token(16) < costs.round(4, 16)
    ([1, 5], True)
    """
    return merged(repeated_costs(models, text, **timing))


def repeated_costs(
    models: Models,
    text: Sequence[int],
    *,
    lengths: Sequence[int] = (256,),
    gammas: Sequence[int] = GAMMAS,
    mode: DecodingMode = KEEP_ALL,
    rounds: int = _ROUNDS,
    repeats: int = _REPEATS,
    rows: int = 1,
    track: Callable[[Sequence[Any]], Iterable[Any]] = iter,
) -> list[Costs]:
    """Time rounds of ``mode`` after prompts of the given lengths, in calls of ``generate()`` like any other.

    On a GPU, events on its stream are the clock, and no call waits for the device. Short calls warm up; then all draft
    lengths take turns, ``repeats`` times. Each repeat has costs of its own, medians over the rounds of its calls.

    Parameters
    ----------
    models
        Target and draft.
    text
        Token ids, repeated or cut to each of the ``lengths``.
    gammas
        Draft lengths; 0 is the target alone.
    rounds
        Of each call; the first and the last do not count.
    rows
        How many such texts are decoded together.
    track
        May show the progress of an iterable.

    Raises
    ------
    LossyValueError
        When ``gammas`` or ``lengths`` are not ascending numbers; before any forward pass.
    """
    _GAMMAS.check("gammas", gammas)
    _LENGTHS.check("lengths", lengths)
    alone, lengths = replace(mode, rule=None, settings={}, gamma=None), _within(models, lengths, rounds, gammas)
    modes = [replace(mode, gamma=gamma) if gamma else alone for gamma in sorted(gammas)]
    found = _timed(models, modes, lengths, [text] * rows, rounds, repeats, track)
    return [_costs(models, lengths, dict(zip(sorted(gammas), steps, strict=True))) for steps in found]


def merged(repeats: Sequence[Costs]) -> Costs:
    """Return the medians of costs over repeats, without those of the target that fall as it reads more tokens.

    A target can read a token together with others that nobody asked for, so more tokens never take less time. What
    falls is noise: neighbours are pooled until nothing does (isotonic regression).

    Examples
    --------
    >>> merged([Costs((8,), (0.0,), (0.0,), (0.1,), {1: (3.0,), 2: (1.0,), 6: (4.0,)})]).target
    {1: (2.0,), 2: (2.0,), 6: (4.0,)}
    """
    from sklearn.isotonic import isotonic_regression  # of the extra `lab`

    first = repeats[0]
    lines = {
        name: tuple(map(median, zip(*(getattr(one, name) for one in repeats), strict=True)))
        for name in ("prompt", "prompt_alone", "drafted", "block")
    }
    widths = sorted(first.target)
    read = np.median([[one.target[n] for n in widths] for one in repeats], axis=0)
    rising = np.stack([isotonic_regression(column) for column in read.T], axis=1).tolist()
    return replace(first, **lines, target={n: tuple(row) for n, row in zip(widths, rising, strict=True)})


def costs_of(
    models: Models,
    modes: Iterable[DecodingMode],
    text: Sequence[int],
    lengths: Sequence[int],
    track: Callable[[Sequence[Any]], Iterable[Any]] = iter,
    clock: Clock | None = None,
) -> dict[str, Costs]:
    """Return the costs of modes by their labels: each mode's own rounds, with its rule and its draft length.

    All modes take turns; without a GPU they are timed by ``clock``, or else by the wall's. Modes that vLLM answers are
    left out, as are those whose drafts are as long as a head or the text says: ``sprinter``, prompt lookup,
    ``stop_drafting``, and ``stock`` with a schedule or a threshold.
    """
    ours = [mode for mode in modes if mode.engine is None and not mode.is_rounding and not _vary(models, mode)]
    auto = tuple(sorted({min(gamma, models.longest) for gamma in _AUTO}))
    gammas = [auto if mode.gamma == "auto" else (mode.gamma or 0,) for mode in ours]
    lengths = _within(models, lengths, _ROUNDS, [gamma for own in gammas for gamma in own])
    single = [
        mode if mode.gamma is None else replace(mode, gamma=gamma)
        for mode, own in zip(ours, gammas, strict=True)
        for gamma in own
    ]
    # One draft length has fewer rounds than many, so each is timed twice as often.
    repeats = [iter(each) for each in _timed(models, single, lengths, [text], _ROUNDS, 2 * _REPEATS, track, clock)]
    return {
        mode.label: merged([_costs(models, lengths, {gamma: next(steps) for gamma in own}) for steps in repeats])
        for mode, own in zip(ours, gammas, strict=True)
    }


def _vary(models: Models, mode: DecodingMode) -> bool:
    """Tell whether a draft's length depends on the text in another way than by default."""
    if mode.gamma is None:
        return False
    by_text = {"stop_drafting"} if mode.rule else {"schedule", "threshold"}
    return models.lookup > 0 or "sprinter" in mode.rules or not by_text.isdisjoint(mode.settings)


def _within(models: Models, lengths: Sequence[int], rounds: int, gammas: Iterable[int]) -> list[int]:
    """Cut lengths of text so that the longest timed call ends at the target's last position."""
    positions = getattr(models.target.config.get_text_config(decoder=True), "max_position_embeddings", None)
    room = (positions or math.inf) - rounds * (max(gammas, default=0) + 1)
    return sorted({max(1, min(length, room)) for length in lengths})


def lengths_between(answers: Iterable[Answer]) -> list[int]:
    """Return the lengths of text at which to measure costs: from the shortest prompt to the longest text."""
    known = [answer for answer in answers if answer.prompt is not None]
    low = min((answer.prompt for answer in known), default=1)
    high = max((answer.prompt + answer.tokens for answer in known), default=1)
    between = [round(math.sqrt(low * high))] if high > 4 * low else []
    return sorted({max(1, low), *between, max(1, high)})


def predicted_seconds(
    modes: Iterable[DecodingMode], costs: Mapping[str, Mapping[str, Any]], answers: Iterable[Answer]
) -> dict[str, dict[int, float]]:
    """Return the seconds of answers by mode and problem, where a mode's costs and an answer's counts are known."""
    known = {mode.label: (mode, Costs.of(costs[mode.label])) for mode in modes if mode.label in costs}
    found: dict[str, dict[int, float]] = {}
    for answer in answers:
        mode, cost = known.get(answer.mode, (None, None))
        if mode is None or answer.prompt is None or (answer.drafted is None and mode.gamma == "auto"):
            continue
        rounds, drafted = (answer.tokens, 0) if mode.gamma is None else (answer.rounds, answer.drafted)
        if mode.gamma not in (None, "auto"):
            drafted = rounds * mode.gamma
        found.setdefault(mode.label, {})[answer.id] = cost.answer(answer.prompt, answer.tokens, rounds, drafted)
    return found


_Steps = tuple[float, float, float]
"""Seconds: of the prompt's reading, of a round's draft, and of all else in it."""


def _costs(models: Models, lengths: Sequence[int], steps: Mapping[int, Sequence[_Steps]]) -> Costs:
    """Put steps, by draft length and then for each length of text, together."""
    alone, drafting = steps.get(0), {gamma: own for gamma, own in steps.items() if gamma}
    first = [median(own[i][0] for own in (drafting or steps).values()) for i in range(len(lengths))]
    at_once = models.drafts_at_once
    draft = tuple(
        median([own[i][1] / (1 if at_once else gamma) for gamma, own in drafting.items()] or [0.0])
        for i in range(len(lengths))
    )
    nothing = (0.0,) * len(draft)
    return Costs(
        lengths=tuple(lengths),
        prompt=tuple(first),
        prompt_alone=tuple(step[0] for step in alone) if alone else tuple(first),
        drafted=nothing if at_once else draft,
        target={gamma + 1: tuple(step[2] for step in own) for gamma, own in steps.items()},
        block=draft if at_once else nothing,
    )


def _timed(
    models: Models,
    modes: Sequence[DecodingMode],
    lengths: Sequence[int],
    texts: Sequence[Sequence[int]],
    rounds: int,
    repeats: int,
    track: Any,
    clock: Clock | None = None,
) -> list[list[list[_Steps]]]:
    """Let all modes take turns; return for each repeat the steps of each mode, for each length."""
    found: dict[tuple[int, int], list[_Steps]] = {}
    turns = [(m, length) for length in lengths for m in range(len(modes))]
    for number, (m, length) in enumerate(track([*turns[: len(modes)], *turns * repeats])):
        warming = number < len(modes)
        laps = _laps(models, modes[m], texts, length, 2 if warming else rounds, clock)
        if not warming:
            # Medians over a call's rounds.
            drafting, other = (median(lap[i] for lap in laps[1:]) for i in (0, 1))
            steps = max(0.0, sum(laps[0]) - drafting - other), drafting, other
            found.setdefault((m, length), []).append(steps)
    return [[[found[m, length][r] for length in lengths] for m in range(len(modes))] for r in range(repeats)]


class _Marks(StoppingCriteria):
    """Takes the time of the tokens that transformers' own loops write, and lets nothing but the limit end a call."""

    def __init__(self, models: Models, needed: bool) -> None:
        self.pace = Pace(models.target.device)
        # A token that no model writes. A call of our own loop times itself, and has nothing else to call.
        never = models.target.get_input_embeddings().num_embeddings
        self.keywords = {"eos_token_id": never}
        if needed:
            self.keywords["stopping_criteria"] = StoppingCriteriaList([self])
        self.mark()

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        self.mark()
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

    def mark(self) -> None:
        self.pace.began.append(self.pace.now())
        self.pace.drafted.append(self.pace.began[-1])

    def cut(self, tokens: Tensor) -> Tensor:
        return tokens


def _laps(
    models: Models, mode: DecodingMode, texts: Any, length: int, rounds: int, clock: Clock | None
) -> list[tuple[float, float]]:
    """Return the seconds of a call's rounds but the last: those of the draft, and of all else."""
    (batch,) = batches_of(texts, len(texts), device=models.target.device, length=length)
    with watched(clock) as paces:
        marks = _Marks(models, needed=mode.rule is None)
        run_request(models, mode, replace(batch, ending=marks), rounds * ((mode.gamma or 0) + 1))
    synchronizer(models.target.device)()
    if mode.rule is None:
        return marks.pace.laps()
    paces[1].began[0] = marks.pace.began[0]  # the first round begins with the call
    return [lap for pace in paces[1:] for lap in pace.laps()]
