"""The programs task: its problems, its splits, and what counts as an answer."""

from __future__ import annotations

import random
import re

import pytest

from hf_lossy_assist.tasks import Programs, programs
from hf_lossy_assist.tasks import program_wordings as w
from hf_lossy_assist.tasks.programs import INPUTS, Part, ProgramProblem, draw_problem, write_program

NAMES = {*w.LISTS, *w.ELEMENTS, *w.KEPT, *w.TOTALS}


def test_the_same_call_gives_the_same_examples():
    assert Programs(3).examples("test", 20) == Programs(3).examples("test", 20)
    assert Programs(3).examples("test", 5) == Programs(3).examples("test", 20)[:5]
    assert Programs(0).examples("test", 20) != Programs(1).examples("test", 20)


def test_splits_share_no_problem_whatever_the_seed(monkeypatch):
    # Drawn from 300 problems, every one turns up many times: with splits by chance they would overlap.
    rng = random.Random(0)
    few = [draw_problem(rng) for _ in range(300)]
    monkeypatch.setattr(programs, "draw_problem", lambda rng: rng.choice(few))
    drawn = {
        split: {example.answer for seed in range(3) for example in Programs(seed).examples(split, 200)}
        for split in Programs.splits
    }
    reference = {
        split: {" ".join(str(p.solve(x)).replace(" ", "") for x in INPUTS) for p in few if p.split == split}
        for split in Programs.splits
    }
    for split, answers in drawn.items():
        assert answers <= reference[split]
    assert drawn["test"] == reference["test"]
    assert len({p for p in few if p.split != "train"}) > 15


def test_the_order_of_two_tests_does_not_decide_the_split():
    rng = random.Random(1)
    for problem in [p for p in (draw_problem(rng) for _ in range(200)) if len(p.tests) == 2]:
        assert ProgramProblem(problem.part, problem.tests[::-1], problem.change, problem.result).split == problem.split


def test_every_way_to_write_a_problem_passes():
    rng, task = random.Random(2), Programs()
    for kind in w.SAID_RESULTS:
        for tests in ((Part("above", 4),), (Part("least", 3), Part("odd")), (Part("multiple", 3), Part("most", 7))):
            problem = ProgramProblem(Part("skip", 2), tests, Part("from", 9), Part(kind))
            answer = " ".join(str(problem.solve(values)).replace(" ", "") for values in INPUTS)
            for _ in range(30):
                text = write_program(problem, rng)
                assert task.extract_answer(text) == answer, text


def passing(problem: ProgramProblem) -> list[int]:
    """Return the numbers that pass a problem's tests, among those that a whole input has of one kind."""
    return [v for v in range(-1, 11) if all(programs._TESTS[test.kind](v, test.k) for test in problem.tests)]


def test_every_pair_of_problems_that_differ_in_one_number_has_different_answers():
    rng = random.Random(3)
    for _ in range(100):
        problem = draw_problem(rng)
        for i, test in enumerate(problem.tests):
            if test.kind not in ("above", "least", "below", "most"):
                continue
            tests = (*problem.tests[:i], Part(test.kind, test.k + 1), *problem.tests[i + 1 :])
            other = ProgramProblem(problem.part, tests, problem.change, problem.result)
            passed = [
                sum(all(programs._TESTS[t.kind](v, t.k) for t in p.tests) for v in range(-1, 11))
                for p in (problem, other)
            ]
            if passed[0] != passed[1]:
                assert [problem.solve(x) for x in INPUTS] != [other.solve(x) for x in INPUTS]


def correct_after(change, n: int = 150) -> float:
    """Return the share of solutions that are still right once ``change(text, rng)`` has been at them."""
    task, rng, kept = Programs(), random.Random(4), []
    for example in task.examples("test", n):
        header, body = example.solution.split(":", 1)
        body = "\n".join(line for line in body.split("\n") if "#" not in line)  # what a comment says does not count
        changed = change(header + ":" + body, rng)
        if changed is not None:
            kept.append(task.correct(example, changed))
    assert len(kept) > n / 8
    return sum(kept) / len(kept)


def mutation(pattern: str, choices: tuple[str, ...]):
    def change(text: str, rng: random.Random) -> str | None:
        found = list(re.finditer(pattern, text))
        if not found:
            return None
        place = rng.choice(found)
        other = rng.choice([x for x in choices if x != place.group()])
        return text[: place.start()] + other + text[place.end() :]

    return change


@pytest.mark.parametrize(
    ("pattern", "choices", "most"),
    [
        (r"(?<= )[+*-](?= )", ("+", "-", "*"), 0.05),
        (r"(?<= )[<>]=?(?= )", ("<", ">", "<=", ">="), 0.05),
        (r"(?<![\w\d])\d(?=\b)", tuple("23456789"), 0.2),
        (r"(?<=\[)-?\d(?=\])", ("0", "1", "-1", "2"), 0.1),
        (r"(?<=return )(sum|max|min|len|sorted)(?=\()", ("sum", "max", "min", "len"), 0.1),
    ],
    ids=["operators", "comparisons", "numbers", "indices", "functions"],
)
def test_changing_one_piece_that_matters_makes_most_programs_wrong(pattern, choices, most):
    assert correct_after(mutation(pattern, choices)) <= most


def test_a_name_that_is_not_used_consistently_makes_a_program_wrong():
    def one_use(text: str, rng: random.Random) -> str | None:
        uses = [m for m in re.finditer(r"\b[a-z]+\b", text) if m.group() in NAMES and m.start() > text.index(":")]
        place = rng.choice(uses)
        other = rng.choice(sorted(NAMES - set(re.findall(r"\w+", text))))
        return text[: place.start()] + other + text[place.end() :]

    assert correct_after(one_use) == 0


def test_a_name_that_is_used_consistently_is_free():
    def everywhere(text: str, rng: random.Random) -> str:
        name = rng.choice([x for x in re.findall(r"\b[a-z]+\b", text) if x in NAMES])
        other = rng.choice(sorted(NAMES - set(re.findall(r"\w+", text))))
        return re.sub(rf"\b{name}\b", other, text)

    assert correct_after(everywhere) == 1


@pytest.mark.parametrize("text", ["", "Nothing.", "return 1", "def f(a):", "def f(a):\n    return 1\nf(2)"])
def test_what_is_no_program_is_no_answer(text):
    assert Programs().extract_answer(text) is None


def test_a_program_that_fails_has_no_value():
    assert Programs().extract_answer("def f(a):\n    return b") == " ".join(["error"] * len(INPUTS))
