"""Traces as a person sees them."""

from __future__ import annotations

import pytest

from benchmarks.bundled_pair.recipe import build_tokenizer
from hf_lossy_assist.cli.rendering import LOSSY_STYLE, MarkedText, traced_text


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(100)


def test_only_the_tokens_that_a_lossy_rule_let_through_are_marked(tokenizer):
    tokens = tokenizer(" has 5 + 7 = 12 more.", add_special_tokens=False)["input_ids"]
    pieces = [tokenizer.decode(token) for token in tokens]
    trace = ["accepted"] * len(tokens)
    trace[pieces.index("7")] = trace[pieces.index(" more")] = "accepted_lossy"
    trace[pieces.index("2")] = "corrected"
    assert traced_text(tokenizer, tokens, trace, colour=False).plain == " has 5 + «7» = 12 «more»."
    coloured = traced_text(tokenizer, tokens, trace, colour=True)
    assert coloured.plain == " has 5 + 7 = 12 more."
    assert [coloured.plain[s.start : s.end] for s in coloured.spans if s.style == LOSSY_STYLE] == ["7", "more"]


def test_a_character_of_several_tokens_is_marked_as_a_whole(tokenizer):
    tokens = tokenizer("a€b", add_special_tokens=False)["input_ids"]
    assert len(tokens) == 5
    trace = ["accepted", "accepted", "accepted_lossy", "accepted", "bonus"]
    assert traced_text(tokenizer, tokens, trace, colour=False).plain == "a«€»b"


def test_special_tokens_are_not_shown(tokenizer):
    tokens = [*tokenizer("12.", add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    assert traced_text(tokenizer, tokens, ["accepted_lossy"] * 4, colour=False).plain == "«1»«2»«.»"


def test_text_without_a_trace_has_no_marks(tokenizer):
    tokens = tokenizer("12.", add_special_tokens=False)["input_ids"]
    assert traced_text(tokenizer, tokens, (), colour=False).plain == "12."


def test_text_of_several_lines_comes_a_piece_at_a_time(tokenizer):
    lines = "Tom has 3.\nAda has 5.\n\n"
    tokens = tokenizer(lines, add_special_tokens=False)["input_ids"]
    text = MarkedText(tokenizer, colour=False)
    pieces = [text.add(token).plain for token in tokens]
    assert "".join(pieces) == lines
    assert sum(map(bool, pieces)) == len(tokens)
