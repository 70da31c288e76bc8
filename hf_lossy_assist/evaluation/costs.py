"""What the steps of decoding cost on this machine: real calls are timed round by round, and medians are taken."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList

from ..decoding.pace import Pace, watched
from ..values import Rule
from .meters import synchronizer
from .modes import DecodingMode, Models
from .requests import batches_of, run_request

GAMMAS = (0, 1, 2, 3, 5, 8, 12, 16, 24, 32)
"""The draft lengths that :func:`measure_costs` times; 0 is the target alone."""

KEEP_ALL = DecodingMode("everything", "thresholds", {"threshold_single": 0}, 5)
"""The mode that it times: each of its rounds has all of its tokens."""

_GAMMAS = Rule("ints >= 0, none twice", lambda x: len({*x}) == len(x) > 0 and all(type(g) is int and g >= 0 for g in x))
_LENGTHS = Rule("ascending ints >= 1", lambda x: sorted({*x}) == [*x] and len(x) > 0 and x[0] >= 1)


@dataclass(frozen=True)
class Costs:
    """Seconds of the steps of a call, by the length of its text.

    Between two measured lengths, and between two measured numbers of tokens, costs are interpolated; beyond the last
    they stay.

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

    def token(self, length: float) -> float:
        """Return the seconds of a drafted token."""
        return float(np.interp(length, self.lengths, self.drafted))

    def read(self, tokens: float, length: float) -> float:
        """Return the seconds of a round without its draft, in which the target reads so many tokens."""
        known = sorted(self.target)
        return float(np.interp(tokens, known, [np.interp(length, self.lengths, self.target[n]) for n in known]))

    def round(self, gamma: float, length: float) -> float:
        """Return the seconds of a round of ``gamma`` drafted tokens; 0 is a token of the target alone."""
        return gamma * self.token(length) + self.read(gamma + 1, length)

    def answer(self, prompt: int, tokens: int, rounds: int, drafted: int) -> float:
        """Return the seconds of an answer of so many ``tokens`` to a ``prompt`` of so many."""
        if not rounds:
            return 0.0
        first = np.interp(prompt, self.lengths, self.prompt if drafted else self.prompt_alone)
        return float(first) + rounds * self.round(drafted / rounds, prompt + tokens / 2)


def measure_costs(
    models: Models,
    text: Sequence[int],
    *,
    lengths: Sequence[int] = (256,),
    gammas: Sequence[int] = GAMMAS,
    mode: DecodingMode = KEEP_ALL,
    rounds: int = 6,
    repeats: int = 2,
    rows: int = 1,
    track: Any = iter,
) -> Costs:
    """Time rounds of ``mode`` after prompts of the given lengths, in calls of ``generate()`` like any other.

    On a GPU, events on its stream are the clock, and no call waits for the device. One call warms up; then all draft
    lengths take turns, ``repeats`` times, and medians over rounds are taken.

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

    Examples
    --------
    >>> from hf_lossy_assist import pairs
    >>> pair = pairs.load("arithmetic")
    >>> text = pair.tokenizer("Question: Ada has 3 pens.")["input_ids"]
    >>> costs = measure_costs(Models(pair.target, pair.draft), text, lengths=(16,), gammas=(0, 4), repeats=1)
    >>> sorted(costs.target), 0 < costs.token(16) < costs.round(4, 16)
    ([1, 5], True)
    """
    _GAMMAS.check("gammas", gammas)
    _LENGTHS.check("lengths", lengths)
    turns = [(length, gamma) for length in lengths for gamma in gammas]
    found: dict[tuple[int, int], list[list[tuple[float, float]]]] = {turn: [] for turn in turns}
    for number, (length, gamma) in enumerate(track([(lengths[0], max(gammas)), *turns * repeats])):
        laps = _laps(models, replace(mode, gamma=gamma), [text] * rows, length, rounds)
        if number:
            found[length, gamma].append(laps)
    drafting = [gamma for gamma in gammas if gamma]
    steps = {turn: _medians(calls) for turn, calls in found.items()}

    def by_length(values: Any) -> tuple[float, ...]:
        return tuple(float(median(values(length))) for length in lengths)

    first = by_length(lambda length: [steps[length, gamma][0] for gamma in drafting or [0]])
    return Costs(
        lengths=tuple(lengths),
        prompt=first,
        prompt_alone=by_length(lambda length: [steps[length, 0][0]]) if 0 in gammas else first,
        drafted=by_length(lambda length: [steps[length, gamma][1] / gamma for gamma in drafting] or [0.0]),
        target={g + 1: by_length(lambda length, g=g: [steps[length, g][2]]) for g in sorted(gammas)},
    )


def _medians(calls: Iterable[Sequence[tuple[float, float]]]) -> tuple[float, float, float]:
    """Return what reading the prompt takes, a round's draft, and all else in it: medians over calls and rounds."""
    later = [lap for laps in calls for lap in laps[1:]]
    drafting, other = (median(lap[i] for lap in later) for i in (0, 1))
    first = median(sum(laps[0]) for laps in calls)
    return max(0.0, first - drafting - other), drafting, other


class _Marks(StoppingCriteria):
    """Takes the time of every token that transformers' own loop writes; a call that it never stops also has no EOS."""

    def __init__(self, models: Models) -> None:
        self.pace = Pace(models.target.device)
        # A token that no model writes: nothing but the limit may end a call.
        never = models.target.get_input_embeddings().num_embeddings
        self.keywords = {"eos_token_id": never, "stopping_criteria": StoppingCriteriaList()}

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        self.mark()
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

    def mark(self) -> None:
        self.pace.began.append(self.pace.now())
        self.pace.drafted.append(self.pace.began[-1])

    def cut(self, tokens: Tensor) -> Tensor:
        return tokens


def _laps(models: Models, mode: DecodingMode, texts: Any, length: int, rounds: int) -> list[tuple[float, float]]:
    """Return the seconds of a call's rounds but the last: those of the draft, and of all else."""
    marks = _Marks(models)
    if alone := mode.gamma == 0:
        mode = DecodingMode()
        marks.keywords["stopping_criteria"].append(marks)
    (batch,) = batches_of(texts, len(texts), device=models.target.device, length=length)
    marks.mark()
    with watched() as paces:
        run_request(models, mode, replace(batch, ending=marks), rounds * ((mode.gamma or 0) + 1))
    synchronizer(models.target.device)()
    return [lap for pace in ([marks.pace] if alone else paces) for lap in pace.laps()]
