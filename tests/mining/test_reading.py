"""Batches of texts of different lengths against one forward for each text."""

from __future__ import annotations

import random

import pytest
import torch

from hf_lossy_assist import LossyUnsupportedError
from hf_lossy_assist.mining.reading import CachedText, check, grouped, read, read_text
from hf_lossy_assist.mining.row_batch import RowBatch
from tests.tiny_models import ARCHITECTURES, VOCAB, constant, tiny


def alone(model, text) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([list(text)]), use_cache=False).logits[0]


def texts(seed: int, lengths) -> list[tuple[int, ...]]:
    rng = random.Random(seed)
    return [tuple(rng.randrange(3, VOCAB) for _ in range(n)) for n in lengths]


def close(a, b) -> None:
    torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_texts_are_read_as_if_alone(architecture):
    model = tiny(architecture)
    batch = texts(0, (3, 17, 9))
    reading = read(model, batch, [(CachedText(), 0)] * 3)
    for text, logits, memory in zip(batch, reading.logits, reading.memories, strict=True):
        close(logits[-len(text) :], alone(model, text))
        assert memory.tokens == text
        assert memory.layers[0][0].shape[1] == len(text)

    # Continue the texts, from different points on, together with a new one.
    changed = [(*batch[0], 5, 6), (*batch[1][:11], 8), (*batch[2][:4], *batch[2][:3], 4), texts(1, (6,))[0]]
    known = [(memory, memory.common(text)) for memory, text in zip(reading.memories, changed, strict=False)]
    assert [n for _, n in known] == [3, 11, 4]
    again = read(model, changed, [*known, (CachedText(), 0)])
    k = again.logits.shape[1]
    assert k == 6
    for text, logits in zip(changed, again.logits, strict=True):
        close(logits[-min(k, len(text)) :], alone(model, text)[-k:])


@pytest.mark.parametrize("known", [0, 5])
def test_only_the_last_tokens_of_a_text_can_be_wanted(known):
    model, (text,) = tiny(), texts(3, (12,))
    memory = read(model, [text], [(CachedText(), 0)]).memories[0]
    whole, part = read_text(model, text), read_text(model, text, (memory, known), 4)
    close(part.states, whole.states[-4:])
    close(part.logits, whole.logits[-4:])
    assert part.memory.tokens == text


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


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rows_come_and_go(architecture):
    """Random exchanges of rows, longer than the buffers' slack."""
    model = tiny(architecture)
    rng = random.Random(0)
    rows = RowBatch(model, 3)
    held: list[tuple[int, ...] | None] = [None] * 3
    memories: list[CachedText] = [
        read(model, [text], [(CachedText(), 0)]).memories[0] for text in texts(2, (4, 11, 25))
    ]
    for step in range(160):
        key = rng.randrange(3)
        if held[key] is None or rng.random() < 0.1:
            if held[key] is not None:
                memories[key] = rows.remove(key, held[key])
                assert memories[key].tokens == held[key]
            memory = rng.choice(memories)
            n = rng.randrange(1, min(len(memory.tokens), 40) + 1)
            rows.put(key, memory, n)
            held[key] = memory.tokens[:n]
        tokens = {i: rng.randrange(3, VOCAB) for i, text in enumerate(held) if text is not None}
        logits = rows.step(tokens, 3)
        for row, i in enumerate(tokens):
            held[i] = (*held[i], tokens[i])
            if step % 8 == 0:
                close(logits[row], alone(model, held[i])[-1])
    close(rows.step({2: 5, 0: 6}, 2)[1], alone(model, (*held[0], 6))[-1])  # one text is forgotten
    close(rows.step({0: 7}, 1)[0], alone(model, (*held[0], 6, 7))[-1])  # one row is enough


def test_a_row_may_begin_with_nothing():
    model = tiny()
    rows = RowBatch(model, 2)
    rows.put(0, CachedText(), 0)
    close(rows.step({0: 7}, 2)[0], alone(model, (7,))[-1])
    rows.put(1, rows.remove(0, (7,)), 1)
    close(rows.step({1: 9}, 2)[0], alone(model, (7, 9))[-1])


def test_a_model_that_keeps_a_state_is_refused():
    check(tiny())
    check(constant([0.5, 0.5]))
    model = tiny()
    model.config.is_encoder_decoder = True
    with pytest.raises(LossyUnsupportedError, match="encoder-decoder"):
        check(model)
