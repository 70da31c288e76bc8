"""The target's texts: what they are, and that a kill loses none and doubles none."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
import torch

from hf_lossy_assist.errors import LossyValueError
from hf_lossy_assist.training.drafts.openings import Opening, of_prompts, read_prompts, self_asked
from hf_lossy_assist.training.drafts.text_run import end_tokens, write_until
from hf_lossy_assist.training.drafts.text_store import TextStore
from hf_lossy_assist.training.drafts.text_writing import TextSettings, write_texts
from tests.models import tiny
from tests.training.drafts.fixtures import SETTINGS, tokenizer

RUN = """
import sys, time
from pathlib import Path
from hf_lossy_assist.training.drafts import text_run
from tests.models import tiny
from tests.training.drafts.fixtures import SETTINGS, tokenizer
from hf_lossy_assist.training.drafts.openings import self_asked
store, target, words = text_run.TextStore(Path(sys.argv[1])), tiny("llama"), tokenizer()
store.open(target, {"prompts": None})
slow = lambda progress: (print("batch", flush=True), time.sleep(float(sys.argv[2])))
text_run.write_until(600, store, target, words, [self_asked(words)], SETTINGS, on_batch=slow)
"""


def all_texts(store: TextStore) -> list:
    return [text for batch in store.batches() for text in store.read(batch)]


def test_greedy_answers_are_those_of_generate_and_prompts_of_any_length_share_a_batch():
    target, words = tiny("llama"), tokenizer()
    openings = of_prompts(["w9", "w9 w10 w11 w12 w13", "w30 w31"], words)
    greedy = TextSettings(rows=8, max_new_tokens=12, greedy_share=1.0)
    written = write_texts(target, openings, 0, greedy, end_tokens(target, words), set())
    assert len(written) == 3
    for opening in openings:
        text = next(text for text in written if text.prompt == opening.ids)
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
    prompts = [text.prompt for text in all_texts(texts)]
    assert len(prompts) == len(set(prompts)) > 20
    for prompt in prompts:
        assert prompt[: len(opening.ids)] == opening.ids
        assert prompt[-len(opening.turn_end) :] == opening.turn_end
        turn = prompt[len(opening.ids) : -len(opening.turn_end)]
        assert 0 < len(turn) < SETTINGS.max_turn_tokens
        assert not {2} & set(turn)


def test_a_killed_run_goes_on_with_nothing_lost_or_doubled(tmp_path, texts):
    command = [sys.executable, "-c", RUN, str(tmp_path)]
    victim = subprocess.Popen([*command, "60"], stdout=subprocess.PIPE)
    victim.stdout.readline()  # one batch is on disk
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    store = TextStore(tmp_path)
    assert store.batches() == [0]
    subprocess.run([*command, "0"], check=True, stdout=subprocess.DEVNULL)
    assert store.answer_tokens() >= 600
    there = all_texts(store)
    assert there == all_texts(texts)[: len(there)]


def test_a_damaged_shard_is_written_again(tmp_path):
    store, target, words = TextStore(tmp_path), tiny("llama"), tokenizer()
    store.open(target, {"prompts": None})
    go = lambda: write_until(300, store, target, words, [self_asked(words)], SETTINGS)  # noqa: E731
    go()
    before = store.read(0)
    path = tmp_path / "texts-000000.safetensors"
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    with pytest.raises(AssertionError):
        assert store.read(0) == before
    go()
    assert store.read(0) == before


def test_texts_of_another_run_are_refused(tmp_path):
    store = TextStore(tmp_path)
    store.open(tiny("llama"), {"prompts": None, "seed": 0})
    with pytest.raises(LossyValueError, match="`seed` was 0 and is 1"):
        store.open(tiny("llama"), {"prompts": None, "seed": 1})
    with pytest.raises(LossyValueError, match="of the target"):
        store.open(tiny(seed=5), {"prompts": None, "seed": 0})


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "one\n\ntwo\n"),
        ("a.json", '["one", "two"]'),
        ("a.jsonl", '{"prompt": "one"}\n{"question": "two"}\n'),
    ],
)
def test_prompts_are_read_from_text_and_json(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    assert read_prompts(tmp_path / name) == ["one", "two"]


def test_files_without_prompts_are_refused(tmp_path):
    with pytest.raises(LossyValueError, match="there is none at"):
        read_prompts(tmp_path / "none.txt")
    (tmp_path / "a.jsonl").write_text('{"other": 1}\n')
    with pytest.raises(LossyValueError, match="has none"):
        read_prompts(tmp_path / "a.jsonl")
