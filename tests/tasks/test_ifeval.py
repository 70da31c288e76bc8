"""Verifiable instructions; the checkers are those of the package."""

from __future__ import annotations

import json
import random
from importlib.util import find_spec

import pytest

from hf_lossy_assist import LossyUnsupportedError, LossyValueError
from hf_lossy_assist.tasks import ifeval, load

ROWS = [
    {"prompt": "No commas.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]},
    {
        "prompt": "Two highlights, at least 5 words.",
        "instruction_id_list": ["detectable_format:number_highlighted_sections", "length_constraints:number_words"],
        "kwargs": [{"num_highlights": 2, "num_words": None}, {"relation": "at least", "num_words": 5}],
    },
    {
        "prompt": "Three sentences.",
        "instruction_id_list": ["length_constraints:number_sentences"],
        "kwargs": [{"relation": "at least", "num_sentences": 3}],
    },
]
installed = pytest.mark.skipif(find_spec("if_verifiable") is None, reason="the extra `ifeval` is not installed")


@pytest.fixture
def data(tmp_path) -> str:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return str(path)


@pytest.mark.skipif(find_spec("if_verifiable") is not None, reason="it is installed")
def test_without_the_extra_an_error_says_what_to_install(data):
    with pytest.raises(LossyUnsupportedError, match=r"hf-lossy-assist\[ifeval\]"):
        load("ifeval", data)


@installed
def test_all_instructions_have_to_be_followed(data):
    task = load("ifeval", data, sentences="false")
    commas, both = task.examples("test", 9)
    assert [task.score(commas, text, "") for text in ("one two", "one, two", "")] == [1, 0, 0]
    good = "Here are *one thing* and *another thing* for you"
    assert task.correct(both, good)
    assert not task.correct(both, "*one* *two*")
    assert not task.correct(commas, "Sure, here:\nno commas here")
    assert load("ifeval", data, sentences=False, loose=True).correct(commas, "Sure, here:\nno commas here")


@installed
def test_a_change_matters_that_breaks_an_instruction_which_was_followed(data):
    task = load("ifeval", data, sentences=False)
    both = task.examples("test", 9)[1]
    followed = {"*a b* and *c d e*": {0, 1}, "*a* *b*": {0}, "a b c d e": {1}, "a": set(), "": set()}
    for current, before in followed.items():
        for new, now in followed.items():
            assert task.keeps_answer(both, current, new) is (before <= now), (current, new)


@installed
def test_the_same_text_always_scores_the_same(tmp_path):
    # The package's checker draws a letter where a prompt asks for a sign, as keys 1122 and 1129 of the data do.
    path = tmp_path / "signs.jsonl"
    asked = {"letter": "#", "let_frequency": 4, "let_relation": "at least"}
    row = {"prompt": "Four #.", "instruction_id_list": ["keywords:letter_frequency"], "kwargs": [asked]}
    path.write_text(json.dumps(row))
    task = load("ifeval", str(path))
    [signs] = task.examples("test", 1)
    for text in ("abcdefghijklm" * 4, "nopqrstuvwxyz" * 4):  # a drawn letter is in one half of the alphabet
        scores = set()
        for seed in range(40):
            random.seed(seed)
            before = random.getstate()
            scores.add(task.correct(signs, text))
            assert random.getstate() == before
        assert len(scores) == 1


@installed
def test_sentences_need_their_data(data, monkeypatch):
    monkeypatch.setattr(ifeval, "_knows_sentences", lambda: False)
    with pytest.raises(LossyUnsupportedError, match=r"punkt_tab.*sentences=false"):
        load("ifeval", data)
    monkeypatch.setattr(ifeval, "_knows_sentences", lambda: True)
    assert len(load("ifeval", data).examples("test", 9)) == 3


@installed
@pytest.mark.parametrize("change", [{"prompt": None}, {"kwargs": []}, {"instruction_id_list": "x"}])
def test_malformed_rows_are_named(tmp_path, change):
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(ROWS[0] | change))
    with pytest.raises(LossyValueError, match="row 1 of `data` needs a `prompt`"):
        load("ifeval", str(path))


@installed
def test_which_checkers_split_texts_into_sentences(monkeypatch):
    import nltk
    from if_verifiable.ifeval.instructions_registry import INSTRUCTION_DICT

    def missing(*_, **__):
        raise LookupError("punkt_tab")

    monkeypatch.setattr(nltk.data, "load", missing)
    monkeypatch.setattr(nltk.data, "find", missing)
    needing = set()
    for name, kind in INSTRUCTION_DICT.items():
        checker = kind(name)
        checker.build_description(**{"prompt_to_repeat": "a"} if name == "combination:repeat_prompt" else {})
        try:
            checker.check_following("Some words, and a few more.")
        except LookupError:
            needing.add(name)
    assert needing == ifeval._SENTENCES
