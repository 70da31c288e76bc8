"""A conversation whose cache is handed on: the answers of calls on the whole text, at the cost of what is new."""

from __future__ import annotations

import pytest
import torch
from rich.console import Console

from benchmarks.bundled_pair.recipe import build_model, build_tokenizer
from hf_lossy_assist import LossyValueError
from hf_lossy_assist.cli.chat import Conversation
from hf_lossy_assist.cli.models import encode_conversation
from hf_lossy_assist.cli.rendering import ConsoleStreamer
from tests.tiny_pair import TEMPLATE, TINY

TURNS = ("Tom has 3 apples.", "And Ada?", "How many are left?")
DRAFTING = {"prompt_lookup_num_tokens": 4, "lossy_mode": "lossless"}


@pytest.fixture(scope="module")
def tokenizer():
    tokenizer = build_tokenizer(100)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


@pytest.fixture(scope="module")
def target(tokenizer):
    target = build_model(TINY, tokenizer).eval()
    with torch.no_grad():
        for weight in target.parameters():
            weight *= 8  # or it says the same of everything
    return target


def streamer(tokenizer) -> ConsoleStreamer:
    return ConsoleStreamer(tokenizer, Console(quiet=True))


def alone(target, tokenizer, messages) -> tuple[str, int]:
    """Return the answer of a call on the whole conversation, and the length of its text."""
    ids = torch.tensor([encode_conversation(tokenizer, messages)])
    out = target.generate(input_ids=ids, max_new_tokens=12, do_sample=False)
    return tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True), ids.shape[1]


def test_answers_are_those_of_calls_on_the_whole_conversation(target, tokenizer):
    conversation, answers = Conversation(target, tokenizer, "Be brief."), set()
    for turn, text in enumerate(TURNS):
        messages = [*conversation.messages, {"role": "user", "content": text}]
        expected, length = alone(target, tokenizer, messages)
        stats = conversation.answer(text, streamer(tokenizer), 12, do_sample=False, **DRAFTING)
        assert conversation.messages == [*messages, {"role": "assistant", "content": expected}]
        answers.add(expected)
        if turn > 0:  # all but the new message was read before
            assert stats.target_tokens < length
    assert len(answers) == len(TURNS)
    assert conversation.messages[0] == {"role": "system", "content": "Be brief."}
    conversation.reset()
    assert len(conversation.messages) == 1
    expected, _ = alone(target, tokenizer, [*conversation.messages, {"role": "user", "content": TURNS[0]}])
    conversation.answer(TURNS[0], streamer(tokenizer), 12, do_sample=False, **DRAFTING)
    assert conversation.messages[-1]["content"] == expected


def test_an_interruption_ends_the_answer_and_not_the_conversation(target, tokenizer):
    conversation = Conversation(target, tokenizer)

    class Interrupting(ConsoleStreamer):
        def put(self, value):
            if len(self._tokens or ()) >= 3:
                raise KeyboardInterrupt
            super().put(value)

    interrupting = Interrupting(tokenizer, Console(quiet=True))
    assert conversation.answer(TURNS[0], interrupting, 12, do_sample=False, **DRAFTING) is None
    assert conversation.messages[-1] == {"role": "assistant", "content": interrupting.text}
    assert interrupting.text
    expected, _ = alone(target, tokenizer, [*conversation.messages, {"role": "user", "content": TURNS[1]}])
    conversation.answer(TURNS[1], streamer(tokenizer), 12, do_sample=False, **DRAFTING)
    assert conversation.messages[-1]["content"] == expected


def test_a_failed_answer_leaves_the_conversation_as_it_was(target, tokenizer):
    conversation = Conversation(target, tokenizer)
    conversation.answer(TURNS[0], streamer(tokenizer), 12, do_sample=False, **DRAFTING)
    before = list(conversation.messages)
    with pytest.raises(LossyValueError, match="draft's distribution"):
        conversation.answer(TURNS[1], streamer(tokenizer), 12, do_sample=False, **DRAFTING | {"lossy_mode": "fsd"})
    assert conversation.messages == before
    expected, _ = alone(target, tokenizer, [*before, {"role": "user", "content": TURNS[1]}])
    conversation.answer(TURNS[1], streamer(tokenizer), 12, do_sample=False, **DRAFTING)
    assert conversation.messages[-1]["content"] == expected


def test_a_conversation_that_is_too_long_says_so(target, tokenizer):
    with pytest.raises(LossyValueError, match="/reset starts again"):
        Conversation(target, tokenizer).answer("apples " * 4000, streamer(tokenizer), 12, **DRAFTING)


def test_a_tokenizer_without_a_template_is_refused():
    with pytest.raises(LossyValueError, match="has no chat template"):
        encode_conversation(build_tokenizer(100), [{"role": "user", "content": "hi"}])
