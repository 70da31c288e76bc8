"""Replayed rounds against whole answers that were written."""

from __future__ import annotations

import math

import pytest

from benchmarks import headroom
from benchmarks.answers import Answers
from benchmarks.headroom import ALL, KNOWING, LOSSLESS, RULES, TEXTS, Replay, written


@pytest.mark.parametrize("title", TEXTS)
def test_labels_and_orders_are_of_the_same_mismatches(title):
    found = headroom.texts(title)
    labels = [x["important"] for text in found for x in text.mismatches]
    assert labels == [x["important"] for text in found for x in text.orders]
    assert len(labels) == sum(row["texts"] == TEXTS[title][0] for row in headroom.rows("price"))


@pytest.mark.parametrize("title", TEXTS)
@pytest.mark.parametrize("rule", [LOSSLESS, *RULES, ALL])
def test_replayed_calls_are_as_long_as_those_of_whole_answers(title, rule):
    answers = written(title, rule).values()
    if answers:  # the programs are not the same
        seen = sum(x["tokens"] for x in answers) / sum(x["rounds"] for x in answers)
        assert Replay.of(title, rule).calls == pytest.approx(seen, rel=0.01 if title == "GSM8K" else 0.025)


def test_times_by_hand():
    own, base = Replay.of("GSM8K", KNOWING), Replay.of("GSM8K", LOSSLESS)
    assert own.matter == 0 < base.beside(base, 0.1)[0] == 1
    answers = Answers.of("gsm8k").times("typical", "rounds", "score")
    rule = Replay.of("GSM8K", "`typical`")
    right, time = headroom.of_right("GSM8K", "`typical`", (rule, base), 0.05), rule.beside(base, 0.05)
    assert right[0] == pytest.approx(answers[0] * time[0] * rule.calls / base.calls)
    spread = math.log(answers[2] / answers[0]) ** 2 + math.log(time[2] / time[0]) ** 2
    assert math.log(right[2] / right[0]) ** 2 == pytest.approx(spread)
