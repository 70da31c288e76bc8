"""The arithmetic task: its problems, its splits, and what counts as an answer."""

from __future__ import annotations

import random
import re

import pytest

from hf_lossy_assist.tasks import Arithmetic, arithmetic
from hf_lossy_assist.tasks.task import Example

OPERATIONS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "x": lambda a, b: a * b}
EQUATION = re.compile(r"(\d+) ([-+x]) (\d+) = (\d+)")


def numbers_of(example: Example) -> tuple[str, ...]:
    """Return the numbers and operations of an example's solution, whatever its wording."""
    return tuple(re.findall(r"\d+| [-+x] ", example.solution))


def test_the_seed_decides_the_examples():
    examples = Arithmetic(3).examples("train", 500)
    assert Arithmetic(3).examples("train", 500) == examples
    assert Arithmetic(3).examples("train", 5) == examples[:5]
    assert Arithmetic(4).examples("train", 5) != examples[:5]
    assert len({example.prompt for example in examples}) == 500


def test_splits_share_no_problem_whatever_the_seed(monkeypatch):
    # Drawn from 300 problems, every one turns up many times: with splits by chance they would overlap.
    rng = random.Random(0)
    few = [arithmetic.draw_problem(rng) for _ in range(300)]
    monkeypatch.setattr(arithmetic, "draw_problem", lambda rng: rng.choice(few))
    drawn = {
        split: {numbers_of(example) for seed in range(3) for example in Arithmetic(seed).examples(split, 300)}
        for split in Arithmetic.splits
    }
    assert sum(map(len, drawn.values())) > 250
    assert len(set().union(*drawn.values())) == sum(map(len, drawn.values()))
    for split in ("test", "validation"):
        assert 0.01 < sum(problem.split == split for problem in few) / 300 < 0.1  # a twentieth each


def test_every_calculation_is_right():
    task = Arithmetic()
    for example in [example for split in task.splits for example in task.examples(split, 200)]:
        equations = EQUATION.findall(example.solution)
        assert 3 <= len(equations) <= 5
        for a, op, b, result in equations:
            assert OPERATIONS[op](int(a), int(b)) == int(result) <= arithmetic.MAX_TOTAL
        assert equations[-1][-1] == example.answer
        assert task.equivalent(task.extract_answer(example.solution), example.answer)


def test_a_problem_s_answer_follows_from_its_steps():
    rng = random.Random(2)
    kinds = set()
    for _ in range(300):
        problem = arithmetic.draw_problem(rng)
        totals = list(problem.starts)
        for step in problem.steps:
            assert step.before == totals[step.who]
            totals[step.who] = OPERATIONS[step.op](totals[step.who], step.operand)
        expected = {"total": totals[0], "together": sum(totals), "difference": totals[0] - totals[-1]}
        assert problem.answer == expected[problem.kind]
        kinds.add(problem.kind)
    assert kinds == {"total", "together", "difference"}


def test_the_question_names_every_number_but_not_the_way():
    for example in Arithmetic().examples("test", 200):
        asked = re.findall(r"\d+", example.prompt)
        for _, _, operand, _ in EQUATION.findall(example.solution)[:-1]:
            assert operand in asked
        assert " = " not in example.prompt
        assert example.prompt.endswith("\nAnswer:")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The answer is 42.", "42"),
        ("so the answer is 1,234", "1234"),
        ("The answer is -7.", "-7"),
        ("The answer is 007.", "7"),
        ("The answer is 3. No: the answer is 4.", "4"),
        ("It is 42.", None),
        ("The answer is", None),
        ("", None),
    ],
)
def test_extract_answer(text, answer):
    assert Arithmetic().extract_answer(text) == answer


def test_the_order_of_events_is_all_that_interleaving_changes():
    problems = [arithmetic.draw_problem(random.Random(seed)) for seed in range(60)]
    orders = [
        [arithmetic.word_problem(p, random.Random(i), interleaved=interleaved) for i, p in enumerate(problems)]
        for interleaved in (False, True)
    ]
    for problem, grouped, interleaved in zip(problems, *orders, strict=True):
        assert sorted(grouped.prompt.split(". ")) == sorted(interleaved.prompt.split(". "))
        assert grouped.solution == interleaved.solution
        assert problem.kind != "total" or grouped == interleaved
    assert orders[0] != orders[1]
