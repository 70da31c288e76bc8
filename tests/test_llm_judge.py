"""The example of a judge as a task, against a real HTTP server."""

from __future__ import annotations

import itertools
import json
import runpy
from pathlib import Path

import pytest

from hf_lossy_assist import LossyError, LossyUnsupportedError, LossyValueError
from hf_lossy_assist.tasks import Example
from tests.openai_server import fails, openai_server, says

_EXAMPLE = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "14_llm_judge.py"))
Preference, verdict = _EXAMPLE["Preference"], _EXAMPLE["verdict"]
EXAMPLE = Example("Write a poem.", "")


@pytest.fixture
def server():
    with openai_server() as server:
        yield server


@pytest.fixture
def make(server, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"prompt": EXAMPLE.prompt}))

    def make(**options):
        settings = {"model": "judge", "base_url": server.url, **options}
        return Preference(str(path), **settings)

    return make


def prefers(text: str, strength: str = ">"):
    """Reply like a judge who prefers the response with ``text`` in it, wherever it stands."""

    def reply(request):
        question = request["messages"][1]["content"]
        first, second = question.split("<|The start of assistant B's response|>")
        if (text in first) == (text in second):
            return says("Equal. [[A=B]]")(request)
        return says(f"Clear. [[A{strength}B]]" if text in first else f"Clear. [[B{strength}A]]")(request)

    return reply


VERDICTS = {
    1: ("Reasons.\n[[A>>B]]", "[[A>B]]"),
    0: ("[[A=B]]",),
    -1: ("[[B>A]]", "[[B>>A]]", "It could be [[A>B]], but no: [[B>A]]"),
    None: ("A>B", "[[A<B]]", "", None),
}


@pytest.mark.parametrize(("favours", "reply"), [(who, reply) for who, replies in VERDICTS.items() for reply in replies])
def test_verdict(favours, reply):
    assert verdict(reply) == favours


@pytest.mark.parametrize("strength", [">", ">>"])
def test_a_response_keeps_the_answer_unless_it_is_worse(server, make, strength):
    server.replies = [prefers("good", strength)]
    task = make()
    assert not task.keeps_answer(EXAMPLE, "a good poem", "a bad poem")
    assert task.keeps_answer(EXAMPLE, "a bad poem", "a good poem")
    assert task.keeps_answer(EXAMPLE, "a poem", "another poem")


def test_a_judge_who_likes_the_first_one_better_does_not_decide(server, make):
    pairs = [(f"poem {i}", f"verse {i}") for i in range(12)]
    server.replies = [says("[[A>B]]")]
    # With an even number of votes both orders count the same, and it is always a tie.
    assert all(make(votes=2).keeps_answer(EXAMPLE, current, new) for current, new in pairs)
    # With three, one order counts twice: which one is left to the texts.
    kept = [make().keeps_answer(EXAMPLE, current, new) for current, new in pairs]
    assert 2 <= sum(kept) <= 10  # of 12 fair coins: 99.4 %, and the texts are fixed


def test_the_order_alternates_from_vote_to_vote(server, make):
    server.replies = [says("[[A=B]]")]
    make(votes=4).keeps_answer(EXAMPLE, "one", "two")
    questions = [request["messages"][1]["content"] for request in server.requests]
    firsts = [question.index("one") < question.index("two") for question in questions]
    assert len(firsts) in (3, 4)
    assert all(a != b for a, b in itertools.pairwise(firsts))
    assert all(EXAMPLE.prompt in question for question in questions)


def test_votes_that_can_t_change_the_outcome_are_not_asked_for(server, make, monkeypatch):
    task = make()
    for votes in itertools.product((1, 0, -1), repeat=3):
        asked = iter(votes)
        monkeypatch.setattr(task, "_vote", lambda example, first, second, asked=asked: signed(first, next(asked)))
        worse = votes.count(1) > votes.count(-1)  # the paper's rule: more votes for the current response
        assert task.keeps_answer(EXAMPLE, "current", "new") is not worse
        rest = list(asked)
        if rest:
            outcomes = {
                sum(votes[: 3 - len(rest)]) + sum(more) > 0 for more in itertools.product((1, 0, -1), repeat=len(rest))
            }
            assert len(outcomes) == 1


def signed(first: str, for_current: int) -> int:
    """Return a vote as the judge gives it: 1 for whatever stands first."""
    return for_current if first == "current" else -for_current


@pytest.mark.parametrize("nonsense", [says("What a nice poem!"), says(None)])
def test_nonsense_is_asked_again_and_then_an_error(server, make, nonsense):
    server.replies = [nonsense, nonsense, prefers("good")]
    assert not make(votes=1).keeps_answer(EXAMPLE, "good", "bad")
    server.replies, asked = [nonsense], len(server.requests)
    with pytest.raises(LossyError, match=r"'judge' gave no verdict like \[\[A>B\]\] in 3 attempts"):
        make().keeps_answer(EXAMPLE, "good", "bad")
    assert len(server.requests) - asked == 3


def test_a_judge_who_refuses_is_an_error(server, make):
    server.replies = [fails(401)]
    with pytest.raises(LossyError, match=r"the judge 'judge' gave no reply: .*401"):
        make().keeps_answer(EXAMPLE, "good", "bad")


def test_a_response_is_correct_if_it_is_as_good_as_the_reference(server, make):
    server.replies = [prefers("good")]
    assert make().correct(Example("Write.", "good"), "a good one")
    assert not make().correct(Example("Write.", "good"), "a bad one")
    with pytest.raises(LossyUnsupportedError, match="give every row of `data` a `reference`"):
        make().correct(EXAMPLE, "a poem")


def test_prompts_are_read_as_mt_bench_has_them(tmp_path):
    path = tmp_path / "questions.jsonl"
    rows = [
        {"question_id": i, "turns": [f"Question {i}", "And then?"], "reference": [f"Answer {i}", "Then!"]}
        for i in range(300)
    ]
    rows += [{"prompt": "A\u2028prompt"}, {"question": "A question", "reference": "An answer"}]
    path.write_text("\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    task = Preference(str(path), model="judge")
    parts = {split: task.examples(split, 1000) for split in task.splits}
    examples = [example for part in parts.values() for example in part]
    assert len(examples) == len(set(examples)) == 302
    assert {Example(f"Question {i}", f"Answer {i}", f"Answer {i}") for i in range(300)} < set(examples)
    assert {Example("A\u2028prompt", ""), Example("A question", "An answer", "An answer")} < set(examples)
    assert 0.12 < len(parts["test"]) / 302 < 0.28  # 20 % and 10 %, binomial, more than three standard deviations
    assert 0.04 < len(parts["validation"]) / 302 < 0.16
    assert task.examples("test", 3) == parts["test"][:3]


@pytest.mark.parametrize(
    "row", [{"text": "Hello"}, {"turns": []}, {"turns": [3]}, {"prompt": ""}, {"prompt": {"a": 1}}]
)
def test_a_row_without_a_prompt_is_refused(tmp_path, row):
    path = tmp_path / "questions.jsonl"
    path.write_text('{"prompt": "Hello"}\n' + json.dumps(row))
    with pytest.raises(LossyValueError, match="row 2 of `data` needs a text as `prompt` or `question`"):
        Preference(str(path), model="judge").examples("test", 1)


@pytest.mark.parametrize("name", ["votes", "attempts_per_vote"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "3"])
def test_settings_that_can_t_be_are_refused(make, name, value):
    with pytest.raises(LossyValueError, match=f"`{name}` has to "):
        make(**{name: value})


@pytest.mark.parametrize("votes", [1, 2, 3])
def test_a_score_is_a_win_a_tie_or_a_loss(server, make, votes):
    server.replies = [prefers("good")]
    task = make(votes=votes)
    scores = [task.score(EXAMPLE, text, own) for text, own in (("good", "bad"), ("bad", "good"), ("bad", "worse"))]
    assert scores == [1, 0, 0.5]
    asked = len(server.requests)
    assert task.score(EXAMPLE, "same ", "same") == 0.5
    assert task.keeps_answer(EXAMPLE, "a poem", " a poem\n")
    assert len(server.requests) == asked, "the same response is as good without asking"
    assert task.score(Example("Write a poem.", "good"), "bad", "bad") == 0, "where there is a reference, it is compared"
    assert (task.extract_answer(" a poem \n"), task.extract_answer("  ")) == ("a poem", None)
