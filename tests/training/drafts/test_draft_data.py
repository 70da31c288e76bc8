"""Texts and states for training: what is held out, how they are cut, and that stored states are the target's."""

from __future__ import annotations

import pytest
import torch

from hf_lossy_assist.errors import LossyValueError
from hf_lossy_assist.training.drafts.draft_data import collate, items, split
from hf_lossy_assist.training.drafts.target_states import TargetStates
from hf_lossy_assist.training.drafts.texts import Text
from tests.tiny_models import tiny
from tests.training.drafts.fixtures import data, written


def test_an_epoch_has_all_texts_but_those_whose_prompts_are_held_out(texts):
    train, held_out = split(texts.texts(), 0.2)
    assert held_out
    assert not {text.prompt for text in train} & {text.prompt for text in held_out}
    source, _ = data(texts)
    seen = []
    for batch in map(source.__getitem__, range(len(source))):
        assert len(batch) * max(len(item["ids"]) for item in batch) <= 128
        seen += [(tuple(item["ids"].tolist()), int(item["answers"].int().argmax())) for item in batch]
    assert sorted(seen) == sorted((text.ids, text.answer) for text in train)


def test_few_texts_have_one_prompt_to_measure_on_and_need_another_to_train_on(texts):
    two = [Text((5, 6, 7), 2, True), Text((8, 9, 7), 2, True)]
    train, held_out = split([*two, Text((*held_out_prompt(two), 3), 2, True)])
    assert {text.prompt for text in train} == {prompt for prompt in {(5, 6), (8, 9)} if prompt != held_out_prompt(two)}
    assert [text.prompt for text in held_out] == [held_out_prompt(two)] * 2
    for few in ([], two[:1]):
        with pytest.raises(LossyValueError, match=r"`--tokens`.* held out"):
            split(few)


def held_out_prompt(texts) -> tuple[int, ...]:
    return split(texts)[1][0].prompt


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_states_are_the_target_s_whether_they_are_kept_or_computed(tmp_path, share):
    store, target = written(tmp_path, 300), tiny("llama")
    states = TargetStates(store, target, (0, 1), 256)
    total = sum(len(text.ids) for text in store.texts()) * 3 * 32 * 2
    states.keep(int(share * total))
    stored = [path.stat().st_size for path in tmp_path.glob("states-*")]
    assert sum(stored) <= share * total + 1024 * len(stored)
    there = {text.batch for text in store.texts()}
    assert bool(stored) is (share > 0)
    assert (len(stored) == len(there)) is (share == 1)
    batch = collate([items(store.texts(), states)])
    with torch.no_grad():
        out = target(batch["ids"], output_hidden_states=True)
    expected = torch.cat([out.hidden_states[i] for i in (0, 1)], dim=-1)
    places = batch["answers"]
    torch.testing.assert_close(batch["states"][places].float(), expected[places], atol=0.05, rtol=0.02)
    torch.testing.assert_close(batch["last"][places].float(), out.hidden_states[-1][places], atol=0.05, rtol=0.02)


def test_processes_keep_every_state_once(tmp_path):
    store, target = written(tmp_path, 300), tiny("llama")
    for process in (0, 1):
        TargetStates(store, target, (0, 1)).keep(2**30, process, 2)
        kept = [int(path.stem[-6:]) for path in sorted(tmp_path.glob("states-*"))]
        assert kept == [
            batch for i, batch in enumerate(store.batches()) if store.read(batch) and (process or i % 2 == 0)
        ]


def test_states_of_fewer_layers_give_way_to_those_of_more(tmp_path):
    """An assistant, which reads the last state only, may have shared the folder before."""
    store, target = written(tmp_path, 100), tiny("llama")
    assistant, head = (TargetStates(store, target, layers) for layers in ((), (0, 1, 2)))
    assistant.keep(2**30)
    before = assistant.of(store.texts())
    assert before[0][0].shape == (len(store.texts()[0].ids), 0)
    head.keep(2**30)
    assert head.of(store.texts())[0][0].shape == (len(store.texts()[0].ids), 96)
    assert all(torch.equal(a[1], b[1]) for a, b in zip(before, assistant.of(store.texts()), strict=True))
