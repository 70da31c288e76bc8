"""Whether drafts that end early pay, worked out by hand; and seconds beside those of the loop's own rounds."""

from __future__ import annotations

import pytest

from benchmarks.draft_ends import ENDS, replayed, summary
from hf_lossy_assist.evaluation.advice.advising import GAMMAS, Advising, target_alone
from hf_lossy_assist.evaluation.modes import DecodingMode, Models
from hf_lossy_assist.evaluation.requests import batches_of, run_request


def row(gamma, end, *seconds):
    return {"rule": "lossless", "gamma": gamma, "end": end, "default": 0.3, "seconds": list(seconds)}


def test_speeds_are_those_of_the_closed_form():
    # Rounds of γ drafted tokens take γ + 2 seconds, and give min(γ, 4) + 1 of 60 tokens.
    plain = [row(gamma, 0.0, *[60 / (min(gamma, 4) + 1) * (gamma + 2)] * 4) for gamma in (1, 4, 5, 16)]
    ended = [row(15, end, *[seconds] * 4) for end, seconds in ((0.5, 72), (0.3, 66), (0.1, 204))]
    ((rule, gamma, end, *times),) = summary([*plain, *ended], [60] * 4)
    assert (rule, gamma, end) == ("lossless", "4", "0.3")
    assert times == [f"{12 * 6 / x:.2f}" for x in (66, 72, 66, 12 * 7)]


def test_what_is_best_for_an_answer_is_chosen_on_others():
    plain = [row(2, 0.0, 40, 80, 40, 80), row(5, 0.0, 70, 35, 70, 35)]  # even answers want 2, odd ones 5
    ended = [row(15, end, *[50] * 4) for end in (0.5, 0.3)]
    ((*_, end, at_half, default, five),) = summary([*plain, *ended], [60] * 4)
    assert {x.split()[0] for x in (end, at_half, default)} == {f"{(70 + 80) / (50 + 50):.2f}"}
    assert five.split()[0] == f"{(70 + 80) / (70 + 35):.2f}"


def test_seconds_are_those_of_the_loop_s_rounds(models: Models, tokenizer, tmp_path):
    prompts = [[1, 5, 9], [1, 7, 3, 3, 8]]
    Advising(target_alone(models, tokenizer, prompts, max_new_tokens=20), "topk", guard=0, out=tmp_path).run()
    costs = {"draft": 0.0, "target": {"1": 1.0, "33": 1.0}}  # a round takes a second
    first, *rows = replayed(tmp_path, costs, "lossless,regret")
    assert first == {"tokens": [20, 20], "costs": costs}
    assert len(rows) == 2 * (len(GAMMAS) + len(ENDS))
    for one in rows[: len(rows) // 2 : 3]:
        stop = {"stop_drafting": {"by": "acceptance", "threshold": 1 - one["end"]}} if one["end"] else {}
        mode = DecodingMode("x", "lossless", stop, one["gamma"])
        seen = [run_request(models, mode, batch, 20).work[0][0] for batch in batches_of(prompts)]
        assert sorted(one["seconds"]) == pytest.approx(sorted(seen))
