"""Whole answers, replayed, against answers that other code wrote to the same problems, and against sums by hand."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import headroom, whole
from benchmarks.headroom import LENGTHS, answers_of, rounds
from benchmarks.whole import MODES, ON_DISK, WHOLE, Written


def test_answers_on_disk_replay_to_the_rounds_that_they_had():
    for mode, (_, gamma) in MODES[ON_DISK].items():
        for x in answers_of(ON_DISK, mode).values():
            assert rounds(x["tokens"], x["refused"], gamma) == x["rounds"]


@pytest.mark.parametrize("mode", MODES[ON_DISK])
def test_answers_written_token_by_token_are_those_of_generate(mode):
    other = next(x for x, (rule, _) in MODES[WHOLE].items() if rule == MODES[ON_DISK][mode][0])
    seen, written = answers_of(ON_DISK, mode), answers_of(WHOLE, other)
    for i, x in seen.items():
        assert all(x[name] == written[i][name] for name in ("text", "tokens", "score", "refused", "lossy"))


@pytest.mark.parametrize(
    ("mode", "five"), [*zip(MODES[WHOLE], ["lossless", "judge:threshold=0.263591", "typical"], strict=True)]
)
def test_shorter_drafts_are_replayed_to_calls_as_long_as_they_had(mode, five):
    own, seen = Written.of(WHOLE, mode), answers_of("gsm8k", five).values()
    replayed = sum(x["tokens"] for x in own.answers) / own.rounds[:, 4].sum()
    assert replayed == pytest.approx(sum(x["tokens"] for x in seen) / sum(x["rounds"] for x in seen), rel=0.02)


def test_times_by_hand():
    own, base = Written.of(WHOLE, "typical@32"), Written.of(WHOLE, "lossless@32")
    answer, right = own.beside(base, 0.1)
    best = [min((x.rounds[:, i] * (1 + 0.1 * gamma)).sum() for i, gamma in enumerate(LENGTHS)) for x in (own, base)]
    assert answer[0] == pytest.approx(best[0] / best[1])
    assert right[0] == pytest.approx(best[0] / own.scores.sum() / (best[1] / base.scores.sum()))
    gamma, spent = headroom.best(own.rounds, 0.1)
    assert (own.rounds[:, gamma - 1] * (1 + 0.1 * gamma)).sum() == pytest.approx(best[0]) == spent.sum()


def test_the_share_of_a_token_is_that_of_made_up_seconds():
    rng = np.random.default_rng(0)
    made = [{"rounds": int(n), "drafted": int(n * rng.choice([20, 32]))} for n in rng.integers(5, 40, 30)]
    made = [x | {"seconds": 30 + 8 * x["rounds"] + 0.2 * x["drafted"]} for x in made]
    assert whole.share(made) == pytest.approx(0.025)
