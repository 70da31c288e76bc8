"""Batches of texts of different lengths against one forward for each text."""

from __future__ import annotations

import pytest

from hf_lossy_assist import LossyUnsupportedError
from hf_lossy_assist.models.reading import CachedText, check_readable, grouped, read, read_text, variant_states
from tests.models.references import close, logits_of, texts
from tests.tiny_models import ARCHITECTURES, constant, tiny


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_texts_are_read_as_if_alone(architecture):
    model = tiny(architecture)
    batch = texts(0, (3, 17, 9))
    reading = read(model, batch, [(CachedText(), 0)] * 3)
    for text, logits, memory in zip(batch, reading.logits, reading.memories, strict=True):
        close(logits[-len(text) :], logits_of(model, text))
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
        close(logits[-min(k, len(text)) :], logits_of(model, text)[-k:])


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
    text = read_text(model, tokens)
    variants = [(4 + i % 10, 3 + i) for i in range(40)]
    states = variant_states(model, text, variants)
    assert states.shape == (40, 32)
    for i in (0, 17, 39):
        index, token = variants[i]
        expected = read_text(model, (*tokens[:index], token)).states[-1]
        close(states[i], expected)
    assert variant_states(model, text, []).shape == (0, 32)


def test_a_model_without_a_head_is_refused():
    model = tiny()
    model.get_output_embeddings = lambda: None
    with pytest.raises(LossyUnsupportedError, match="LM head"):
        read_text(model, (3, 4))
