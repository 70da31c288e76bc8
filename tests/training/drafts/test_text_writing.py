"""The target's texts: what they are, and that a kill loses none and doubles none."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hf_lossy_assist import tasks
from hf_lossy_assist.errors import LossyValueError
from hf_lossy_assist.training.drafts.text_writing import (
    Opening,
    TextSettings,
    dealt,
    of_task,
    self_asked,
    write_texts,
    write_until,
)
from hf_lossy_assist.training.drafts.texts import TextStore
from tests.forking import ended, fork
from tests.tiny_models import tiny
from tests.training.drafts.fixtures import ENDS, SETTINGS, tokenizer


def test_greedy_answers_are_those_of_generate_and_prompts_of_any_length_share_a_batch(tmp_path):
    target, words = tiny("llama"), tokenizer()
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("w9\nw9 w10 w11 w12 w13\nw30 w31\n")
    openings = of_task(tasks.load("prompts", str(prompts), split="train"), words)
    greedy = TextSettings(rows=8, max_new_tokens=12, greedy_share=1.0)
    written = write_texts(target, openings, 0, greedy, ENDS, set())
    assert len(written) == 3
    for opening in openings:
        text = next(text for text in written if text.prompt == opening.ids)
        assert text.greedy
        expected = target.generate(torch.tensor([opening.ids]), max_new_tokens=12, do_sample=False, pad_token_id=0)
        assert list(text.ids) == expected[0].tolist()


def test_drawn_tokens_follow_the_target_s_law():
    """Chi-square of 4,000 first tokens, at a confidence of 0.999."""
    from scipy.stats import chisquare

    target = tiny("llama")
    settings = TextSettings(rows=4000, max_new_tokens=1, temperature=1.3, greedy_share=0.0)
    written = write_texts(target, [Opening((5, 9, 17))] * 4000, 3, settings, frozenset(), set())
    with torch.no_grad():
        law = (target(torch.tensor([[5, 9, 17]])).logits[0, -1].double() / 1.3).softmax(-1)
    counts = torch.bincount(torch.tensor([text.ids[-1] for text in written]), minlength=len(law)).double()
    common = law * 4000 >= 5
    observed = [*counts[common].tolist(), counts[~common].sum().item()]
    expected = [*(law[common] * 4000).tolist(), law[~common].sum().item() * 4000]
    assert chisquare(observed, expected).pvalue > 0.001


def test_own_prompts_are_different_turns_in_the_template(texts):
    opening = self_asked(tokenizer())
    prompts = [text.prompt for text in texts.texts()]
    assert len(prompts) == len(set(prompts)) > 20
    for prompt in prompts:
        assert prompt[: len(opening.ids)] == opening.ids
        assert prompt[-len(opening.turn_end) :] == opening.turn_end
        turn = prompt[len(opening.ids) : -len(opening.turn_end)]
        assert 0 < len(turn) < SETTINGS.max_turn_tokens
        assert not {2} & set(turn)


def write_600(folder: Path, on_batch: Callable[..., None]) -> None:
    store, target = TextStore(folder), tiny("llama")
    store.open(target, {"prompts": None})
    write_until(600, store, target, [self_asked(tokenizer())], SETTINGS, ENDS, on_batch=on_batch)


def test_a_killed_run_goes_on_with_nothing_lost_or_doubled(tmp_path, texts):
    victim = fork(write_600, tmp_path, lambda *progress: os.kill(os.getpid(), signal.SIGKILL))
    assert ended(victim) == -signal.SIGKILL
    store = TextStore(tmp_path)
    assert store.batches() == [0]
    write_600(tmp_path, lambda *progress: None)
    assert store.answer_tokens() >= 600
    there = store.texts()
    assert there == texts.texts()[: len(there)]


def test_texts_are_read_as_they_were_written(tmp_path):
    target, store = tiny("llama"), TextStore(tmp_path)
    settings = replace(SETTINGS, rows=6, greedy_share=0.5)
    texts = write_texts(target, [Opening((5, 9, i)) for i in range(6)], 3, settings, ENDS, set())
    assert [text.greedy for text in texts] == [True] * 3 + [False] * 3
    store.open(target, {})
    store.add(3, texts)
    assert [text._replace(batch=-1, start=0) for text in store.texts()] == texts
    everything = [token for text in texts for token in text.ids]
    for text in store.texts():
        assert text.batch == 3
        assert tuple(everything[text.start :][: len(text.ids)]) == text.ids


def test_texts_of_another_run_are_refused(tmp_path):
    store = TextStore(tmp_path)
    store.open(tiny("llama"), {"prompts": None, "seed": 0})
    with pytest.raises(LossyValueError, match="`seed` was 0 and is 1"):
        store.open(tiny("llama"), {"prompts": None, "seed": 1})
    with pytest.raises(LossyValueError, match="of the target"):
        store.open(tiny(seed=5), {"prompts": None, "seed": 0})


def test_batches_deal_every_opening_once_before_any_comes_again():
    openings = [Opening((i,) * (1 + i % 7)) for i in range(20)]
    first, second = ([x for batch in part for x in dealt(openings, batch, 6, 0)] for part in (range(4), range(4, 8)))
    assert sorted(first) == sorted(second) == sorted(openings)
    assert first != second


def test_processes_write_the_texts_of_one(tmp_path, texts):
    store, target = TextStore(tmp_path), tiny("llama")
    for process in (0, 1):
        there = len(store.batches())
        own = {"process": process, "processes": 2}
        write_until(300 * (process + 1), store, target, [Opening((5, 9)), Opening((7, 8))], SETTINGS, ENDS, **own)
        assert {batch % 2 for batch in store.batches()} == {*range(process + 1)}
        assert len(store.batches()) > there
