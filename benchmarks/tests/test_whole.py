"""Whole answers, replayed, against answers that other code wrote to the same problems, and against sums by hand."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import whole
from benchmarks.headroom import LENGTHS, answers_of, rounds
from benchmarks.whole import MODES, ON_DISK, OTHERS, PROGRAMS, WHOLE, Written

WRITTEN = [(configuration, mode) for configuration in MODES for mode in (*MODES[configuration], *OTHERS)]


@pytest.mark.parametrize(("configuration", "mode"), WRITTEN)
def test_answers_replay_to_the_rounds_that_they_had(configuration, mode):
    for x in answers_of(configuration, mode).values():
        assert rounds(x["tokens"], x["refused"], 32) == x["rounds"]


@pytest.mark.parametrize("mode", ON_DISK["humaneval-on-disk"][2])
def test_answers_written_token_by_token_are_those_of_generate(mode):
    written = answers_of(PROGRAMS, mode)
    for i, x in answers_of("humaneval-on-disk", mode).items():
        assert all(x[name] == written[i][name] for name in ("text", "tokens", "score", "rounds", "refused", "lossy"))


@pytest.mark.parametrize(
    ("configuration", "mode"),
    [(configuration, mode) for configuration in MODES for mode in MODES[configuration]],
)
def test_shorter_drafts_are_replayed_to_calls_as_long_as_they_had(configuration, mode):
    seen = answers_of(configuration.removesuffix("-32"), mode.replace("@32", ""))
    if not seen:
        pytest.skip("no answers with five tokens")
    own = Written([x for i, x in answers_of(configuration, mode).items() if i in seen])
    replayed = sum(x["tokens"] for x in own.answers) / own.drafts["5"][:, 0].sum()
    calls = sum(x["rounds"] for x in seen.values())
    assert replayed == pytest.approx(sum(x["tokens"] for x in seen.values()) / calls, rel=0.02)


def simulated(answer: dict, least: float, longest: int) -> tuple[int, int]:
    """Write a text token by token; a draft is certain of nothing but what it has drafted."""
    done = count = drafted = 0
    while done < answer["tokens"]:
        count, product, refused, n = count + 1, 1000, None, 0
        while product >= 1000 * least and n < longest and (refused is not None or done + n < answer["tokens"]):
            if refused is None and done + n in answer["refused"]:
                refused, ahead = n, iter(answer["past"][answer["refused"].index(done + n)])
            product *= (answer["chances"][done + n] if refused is None else next(ahead)) / 1000
            n += 1
        done, drafted = done + (n if refused is None else refused) + 1, drafted + n
    return count, drafted


def test_drafts_that_end_by_their_chances_are_those_of_a_simulation():
    rng = np.random.default_rng(0)
    for _ in range(200):
        tokens = int(rng.integers(1, 60))
        refused = np.flatnonzero(rng.random(tokens) < rng.random()).tolist()
        chances = rng.integers(300, 1001, tokens).tolist()
        answer = {"tokens": tokens, "refused": refused, "chances": chances}
        answer |= {"past": rng.integers(300, 1001, (len(refused), 40)).tolist()}
        least, longest = float(rng.choice([0.1, 0.3, 0.7])), int(rng.integers(1, 32))
        assert whole.ended(answer, least, longest) == simulated(answer, least, longest)
        assert simulated(answer, 0, longest) == whole.ended(answer, 0, longest)
        assert simulated(answer, 0, longest)[0] == rounds(tokens, refused, longest)


def test_the_default_ends_of_drafts_are_replayed_to_calls_and_tokens_that_were_seen():
    seen = answers_of("near-top", "lossless@auto").values()
    written = [x for x in answers_of(WHOLE, "lossless@32").values() if x["id"] < len(seen)]
    count, drafted = np.array([whole.ended(x, 0.5, 15) for x in written]).sum(0)
    calls = sum(x["rounds"] for x in seen)
    assert sum(x["tokens"] for x in written) / count == pytest.approx(sum(x["tokens"] for x in seen) / calls, rel=0.03)
    assert drafted / count == pytest.approx(sum(x["drafted"] for x in seen) / calls, rel=0.03)


def test_times_by_hand():
    own, base = Written.of(WHOLE, "typical@32"), Written.of(WHOLE, "lossless@32")
    answer, right = own.beside(base, 0.1)
    best = [min((both[:, 0] + 0.1 * both[:, 1]).sum() for both in x.drafts.values()) for x in (own, base)]
    assert answer[0] == pytest.approx(best[0] / best[1])
    assert right[0] == pytest.approx(best[0] / own.scores.sum() / (best[1] / base.scores.sum()))
    assert {*map(str, LENGTHS)} <= {*own.drafts}


def test_the_share_of_a_token_is_that_of_made_up_seconds():
    rng = np.random.default_rng(0)
    made = [{"rounds": int(n), "drafted": int(n * rng.choice([20, 32]))} for n in rng.integers(5, 40, 30)]
    made = [x | {"seconds": 30 + 8 * x["rounds"] + 0.2 * x["drafted"]} for x in made]
    assert whole.share(made) == pytest.approx(0.025)
