"""The verdict of an evaluation, case by case."""

from __future__ import annotations

import re

import pytest

from hf_lossy_assist.evaluation.answers import Answer
from hf_lossy_assist.evaluation.modes import parse_modes
from hf_lossy_assist.evaluation.quality import paired_interval, smallest_loss, times_as_fast
from hf_lossy_assist.evaluation.result import EvaluationResult, baselines_of

N = 20
ALWAYS, HALF = "1" * N, "10" * (N // 2)
LOSS = "1" * 10 + "0" * 10
SPEEDS = {"faster": [24, 25, 26, 25], "slower": [14, 15, 16, 15], "tied": [16, 20, 25, 19]}


def result_of(right, speeds, *, reference="plain", lossless=(), size=5) -> EvaluationResult:
    """Return answers of 12 tokens: tokens per second by batch, and "1" for each right answer, "?" for no score."""
    answers = [
        Answer(mode, i, None if score == "?" else float(score), 12, 4, 8, 12 / speeds[mode][i // size], "")
        for mode, scores in right.items()
        for i, score in enumerate(scores)
    ]
    found = baselines_of(parse_modes(",".join(right)))
    return EvaluationResult.of(answers, reference, found, lossless, size)


def verdict(speed="faster", right=ALWAYS, mode="min_p", others=("plain", "lossless"), **options) -> str:
    """Return the last sentence, which is the mode's."""
    speeds = {mode: SPEEDS[speed], "plain": [10] * 4, "lossless": [20] * 4, "topk": [20] * 4}
    own = "?" if "?" in right else ALWAYS
    scores = {**{other: (own * N)[: len(right)] for other in others}, mode: right}
    return result_of(scores, speeds, **options).verdict[-1]


def times(speed: str) -> str:
    """Return the ratio to `lossless`, of five answers a call."""
    return str(times_as_fast([(60, 60 / pace) for pace in SPEEDS[speed]], [(60, 3.0)] * 4))


_, LOW, HIGH = (100 * end for end in paired_interval([*map(int, LOSS)], [1.0] * N))
FASTER, SLOWER, TIED = (
    f"`min_p` is {times('faster')} × as fast as `lossless`",
    f"`min_p` is slower than `lossless`, {times('slower')} × as fast",
    f"`min_p` is tied with `lossless` in speed, {times('tied')} ×",
)
SHOWN, NOT_SHOWN = (
    f"it loses 50.0 ({-HIGH:.1f} to {-LOW:.1f}) points against `plain`",
    "no loss against `plain` is shown on 20",
)
OUTCOMES = {
    ("faster", ALWAYS): f"{FASTER}, and {NOT_SHOWN} problems, which can show 30 points or more.",
    ("faster", LOSS): f"{FASTER}, but {SHOWN}.",
    ("faster", "?" * N): f"{FASTER}; its answers were not scored.",
    ("slower", ALWAYS): f"{SLOWER}, and {NOT_SHOWN} problems, which can show 30 points or more.",
    ("slower", LOSS): f"{SLOWER}, and {SHOWN}.",
    ("slower", "?" * N): f"{SLOWER}; its answers were not scored.",
    ("tied", ALWAYS): f"{TIED}, and {NOT_SHOWN} problems, which can show 30 points or more.",
    ("tied", LOSS): f"{TIED}, and {SHOWN}.",
    ("tied", "?" * N): f"{TIED}; its answers were not scored.",
}


@pytest.mark.parametrize(("case", "said"), OUTCOMES.items())
def test_each_outcome_has_its_sentence(case, said):
    assert verdict(*case) == said


def test_figures_are_the_table_s():
    result = result_of({"plain": ALWAYS, "lossless": ALWAYS, "min_p": LOSS}, {
        "plain": [10] * 4, "lossless": [20] * 4, "min_p": SPEEDS["faster"]
    })  # fmt: skip
    figures = re.findall(r"[\d.]+ \([\d.]+ to [\d.]+\)", result.verdict[-1])
    (row,) = (cells for cells in result.tables[0].cells if cells[0] == "min_p")
    assert figures[0] in row
    assert f"-50.0 ({LOW:.1f} to {HIGH:.1f})" in row


def test_few_calls_tell_no_speed():
    for size in (20, 10, 7):  # one to three calls
        said = verdict(size=size)
        assert said.startswith("`min_p` was called fewer than 4 times, too few to tell its speed, and no loss"), size
        assert "too few calls" in repr(result_of({"plain": ALWAYS, "min_p": ALWAYS}, {
            "plain": [10] * 4, "min_p": SPEEDS["faster"]}, size=size))  # fmt: skip


def test_few_problems_show_no_loss():
    assert verdict(right="1" * 4, size=1).endswith("and 4 problems are too few to show a loss against `plain`.")


def test_a_rule_that_decides_like_lossless_is_marked():
    said = verdict("tied", mode="min_p:tau=1.0", lossless={"min_p:tau=1.0"})
    assert said.startswith("`min_p:tau=1.0`, which is lossless here, is tied with `lossless` in speed")


def test_what_a_mode_is_compared_with():
    assert "× as fast as `plain`, and no loss is shown" in verdict(others=("plain",))
    assert "× as fast as `topk`, and no loss is shown" in verdict(others=("topk",), reference="topk")
    speeds = {"plain": [10] * 4, "lossless@3": [12] * 4, "lossless@8": [20] * 4, "stock": [15] * 4}
    words = result_of(dict.fromkeys(speeds, ALWAYS), speeds).verdict
    assert [line.split(" is ")[0] for line in words] == ["`lossless@8`", "`stock`"], "the fastest one stands for all"
    assert "2.00 × as fast as `plain`" in words[0]


def test_a_mode_with_nothing_beside_it_says_its_own_pace():
    speeds = {"stock": [15] * 4, "lossless": [20] * 4, "min_p": [30] * 4}
    words = result_of(dict.fromkeys(speeds, ALWAYS), speeds, reference="stock").verdict
    assert words[0].startswith("`lossless` writes 20 tokens a second, and no loss")


@pytest.mark.parametrize("n", [1, 8])
def test_graded_scores_without_spread_show_no_loss_and_do_not_say_that_they_could(n):
    for score in (0.7, 0.6):
        scores = {"plain": 0.7, "min_p": score}
        answers = [Answer(mode, i, own, 12, 4, 8, 1.0, "") for mode, own in scores.items() for i in range(n)]
        (said,) = EvaluationResult.of(answers, "plain", {"plain": ["plain"]}).verdict
        assert ("no loss is shown" if n > 1 else "1 problem is too few") in said
        assert " 0 points" not in said


RULES = {"plain": [10] * 4, "lossless": [20] * 4}


@pytest.mark.parametrize(("more", "right", "said"), [
    ({"min_p": [24, 25, 26, 25], "topk": [25, 26, 24, 25]}, {},
     "Tied as the fastest of the rules with no loss shown: `min_p`, `topk`."),
    ({"min_p": [24, 25, 26, 25], "topk": [40, 40, 41, 39]}, {},
     "The fastest of the rules with no loss shown is `topk`."),
    ({"min_p": [24, 25, 26, 25], "topk": [40, 40, 41, 39]}, {"topk": LOSS},
     "The fastest of the rules with no loss shown is `min_p`."),
    ({"min_p": [24, 25, 26, 25], "topk": [40, 40, 41, 39]}, {"topk": LOSS, "min_p": LOSS},
     "Every rule that is shown to be faster than `lossless` loses points."),
    ({"min_p": [16, 20, 25, 19], "topk": [14, 15, 16, 15]}, {}, "No rule is shown to be faster than `lossless`."),
    ({"min_p": [24, 25, 26, 25], "topk": [40, 40, 41, 39]}, dict.fromkeys(("plain", "lossless", "min_p", "topk"),
     "?" * N), "The fastest is `topk`."),
])  # fmt: skip
def test_no_winner_is_named_where_intervals_meet(more, right, said):
    speeds = {**RULES, **more}
    assert result_of({mode: right.get(mode, ALWAYS) for mode in speeds}, speeds).verdict[-1] == said


@pytest.mark.parametrize(("n", "least"), [(4, None), (5, 5), (20, 6), (100, 6)])
def test_the_smallest_loss_that_can_be_shown_is_the_first_whose_interval_lies_below_0(n, least):
    highs = [paired_interval([0.0] * k + [1.0] * (n - k), [1.0] * n).high for k in range(min(n, 10) + 1)]
    assert smallest_loss(n) == (None if least is None else least / n)
    assert [k for k, high in enumerate(highs) if high < 0][:1] == ([] if least is None else [least])


def test_scattered_answers_show_less():
    """Of 20 answers, ten are right here and ten there."""
    speeds = {"plain": [10] * 4, "min_p": [20] * 4}
    result = result_of({"plain": HALF, "min_p": HALF[::-1]}, speeds)
    assert (row := result.modes["min_p"]).high - row.low > 0.6
    assert f"which can show {50 * (row.high - row.low):.2g} points" in result.verdict[0]
