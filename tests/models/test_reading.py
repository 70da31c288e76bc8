"""Batches of texts of different lengths against one forward for each text."""

from __future__ import annotations

import pytest
import torch

from hf_lossy_assist import LossyUnsupportedError
from hf_lossy_assist.models import reading as reading_module
from hf_lossy_assist.models.reading import (
    NOTHING,
    check_readable,
    grouped,
    logits_along,
    read_text,
    remembered,
    variant_states,
)
from tests.models.references import close, logits_of, texts
from tests.tiny_models import ARCHITECTURES, constant, tiny
from tests.training.parts import states_of


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_texts_are_read_as_if_alone(architecture, monkeypatch):
    """By each way of reading, transformers' own forward over a text alone says what a model says."""
    model = tiny(architecture)
    batch = texts(0, (3, 17, 9))
    reading, part = read_text(model, batch, states=True), read_text(model, batch, last=2, states=True)
    assert part.logits.shape[1] == part.states.shape[1] == 2
    for i, text in enumerate(batch):
        close(reading.logits[i, -len(text) :], logits_of(model, text))
        close(reading.states[i, -len(text) :], states_of(model, text))
        close(part.logits[i], logits_of(model, text)[-2:])
        close(part.states[i], states_of(model, text)[-2:])
        assert reading.memories[i].tokens == text
        assert reading.memories[i].layers[0][0].shape[1] == len(text)
    monkeypatch.setattr(reading_module, "CHUNK", 7)
    for start in (1, 2):
        parts = [*logits_along(model, torch.tensor([batch[1]]), start)]
        assert [part.shape[1] for part in parts] == [7, 7, 3 - start]
        close(torch.cat(parts, dim=1)[0], logits_of(model, batch[1])[start - 1 : -1])

    # Continue the texts, from different points on, together with a new one.
    changed = [(*batch[0], 5, 6), (*batch[1][:11], 8), (*batch[2][:4], *batch[2][:3], 4), texts(1, (6,))[0]]
    known = [(memory, memory.common(text)) for memory, text in zip(reading.memories, changed, strict=False)]
    assert [n for _, n in known] == [3, 11, 4]
    again = read_text(model, changed, [*known, NOTHING])
    k = again.logits.shape[1]
    assert k == 6
    for text, logits in zip(changed, again.logits, strict=True):
        close(logits[-min(k, len(text)) :], logits_of(model, text)[-k:])


@pytest.mark.parametrize(
    ("lengths", "most", "groups"),
    [
        ([], 9, []),
        ([3, 8, 5, 4], 100, [[8, 5, 4], [3]]),
        ([2, 2, 2], 4, [[2, 2], [2]]),
        ([20, 1, 30, 16], 50, [[30], [20, 16], [1]]),
    ],
)
def test_jobs_of_similar_length_go_together(lengths, most, groups):
    assert list(grouped(lengths, int, most)) == groups


def test_a_model_that_keeps_a_state_is_refused():
    check_readable(tiny())
    check_readable(constant([0.5, 0.5]))
    model = tiny()
    model.config.is_encoder_decoder = True
    with pytest.raises(LossyUnsupportedError, match="encoder-decoder"):
        check_readable(model)


def test_many_variants_are_read_in_several_forwards():
    model = tiny()
    (tokens,) = texts(5, (14,))
    (text,) = remembered(model, [tokens])
    variants = [(4 + i % 10, 3 + i) for i in range(40)]
    for (index, token), state in zip(variants, variant_states(model, text, variants), strict=True):
        close(state, states_of(model, (*tokens[:index], token))[-1])
    assert variant_states(model, text, []) == []


def test_what_is_remembered_is_read_in_as_few_forwards_as_go_together():
    model, read = tiny(), []
    model.register_forward_pre_hook(lambda _, args, given: read.append(given["input_ids"].shape), with_kwargs=True)
    batch = texts(6, (9, 8, 400, 300))
    found = remembered(model, [*batch, ()])
    assert [memory.tokens for memory in found] == [*batch, ()]
    assert read == [(1, 400), (1, 300), (2, 9)]
    assert remembered(model, batch[:1], [(found[0], 9)]) == found[:1]
    assert len(read) == 3, "nothing was left to read"


def test_a_model_without_a_head_is_refused():
    model = tiny()
    model.get_output_embeddings = lambda: None
    with pytest.raises(LossyUnsupportedError, match="LM head"):
        read_text(model, [(3, 4)], states=True)
