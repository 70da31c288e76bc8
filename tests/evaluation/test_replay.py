"""Replay: along texts without a kept mismatch it is the loop itself; walks agree with a naive simulation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hf_lossy_assist.acceptors import REGISTRY
from hf_lossy_assist.evaluation.modes import DecodingMode
from hf_lossy_assist.evaluation.replay import LIKELIEST, TextLogits, greedy, processors_of, read_laws
from hf_lossy_assist.evaluation.requests import batches_of, run_request
from hf_lossy_assist.models.reading import CHUNK
from tests.nightly import nightly

LIMIT = 40
PROMPTS = [[1, 5, 9], [1, 7, 3, 3, 8], [1, 2]]


@pytest.fixture(scope="module")
def laws(models) -> TextLogits:
    """Both models' laws along greedy texts of the target."""
    mode, texts = DecodingMode(), []
    for batch in batches_of(PROMPTS):
        prompt, answer = batch.ids[0].tolist(), run_request(models, mode, batch, LIMIT).rows[0].tolist()
        texts.append(read_laws(models.target, models.draft, prompt, answer, processors_of(models.target, prompt)))
    return TextLogits.of(texts, LIMIT)


@pytest.mark.parametrize("gamma", nightly([1, 3, 8, 50], but=[3, 50]))
def test_lossless_is_replayed_as_the_loop_runs_it(models, laws, gamma):
    walk = greedy(REGISTRY["lossless"](), laws).walk(laws, gamma)
    seen = [
        run_request(models, DecodingMode("lossless", "lossless", gamma=gamma), batch, LIMIT).work[0]
        for batch in batches_of(PROMPTS)
    ]
    assert [*zip(walk.rounds, walk.kept, walk.others, strict=True)] == seen


@pytest.mark.parametrize("end", [0.02, 0.002])
def test_ends_are_those_of_the_loop(models, laws, end):
    """Drafts end as the loop's, but for tokens after a refused one: there the loop drafts on from that one."""
    walk = greedy(REGISTRY["lossless"](), laws).walk(laws, 12, end)
    mode = DecodingMode("x", "lossless", {"stop_drafting": {"by": "acceptance", "threshold": 1 - end}}, 12)
    seen = [run_request(models, mode, batch, LIMIT).work[0][:2] for batch in batches_of(PROMPTS)]
    assert [*zip(walk.rounds, walk.kept, strict=True)] == seen
    assert (walk.sizes > 0).sum() > 4, "some drafts end early, and not all alike"


@pytest.mark.parametrize("name", ["lossless", "typical", "margin", "topk", "near_top", "fsd"])
@pytest.mark.parametrize(("gamma", "end"), [(1, 0.0), (4, 0.0), (9, 0.0), (9, 0.01)])
def test_a_walk_is_that_of_one_round_after_the_other(laws, name, gamma, end):
    """Against rounds that decide the same tokens, one text and one token at a time."""
    decided = greedy(REGISTRY[name](), laws)
    walk, sure = decided.walk(laws, gamma, end), laws.q.softmax(-1).amax(-1)
    for row, length in enumerate(laws.lengths.tolist()):
        start, sizes, kept = 0, np.zeros(gamma + 1), []
        while start < length:
            room = min(gamma, LIMIT - start - 1)
            size = next((k for k in range(1, room) if sure[row, start : start + k].prod() < end), room)
            sizes[size] += 1
            draft = range(start, min(start + size, length))
            own = next((i for i in draft if not decided.keep[row, i]), draft.stop)
            kept += range(start, own)
            start = own + 1
        others = decided.others[row, kept] > 0
        nats = decided.nats[row, kept] * others
        assert walk.sizes[row].tolist() == sizes.tolist()
        seen = (walk.kept[row], walk.others[row], walk.nats[row], walk.worst[row])
        np.testing.assert_allclose(seen, (len(kept), others.sum(), nats.sum(), nats.max(initial=0)), atol=1e-5)


def test_laws_are_the_models_own(models, laws):
    """Of a small vocabulary every token is a candidate; of a large one, the sums are."""
    vocabulary = models.target.config.vocab_size
    prompt, answer = PROMPTS[0], run_request(models, DecodingMode(), batches_of(PROMPTS)[0], LIMIT).rows[0].tolist()
    ids = torch.tensor([[*prompt, *answer]])
    with torch.no_grad():
        p, q = (model(ids).logits[0, len(prompt) - 1 : -1].softmax(-1) for model in (models.target, models.draft))
    torch.testing.assert_close(laws.p[0].softmax(-1).amax(-1), p.amax(-1), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(laws.q[0].softmax(-1).amax(-1), q.amax(-1), atol=1e-4, rtol=1e-4)
    of_best = p.gather(-1, q.argmax(-1, keepdim=True))[:, 0]
    torch.testing.assert_close(
        laws.p[0].softmax(-1).gather(-1, laws.best[0][:, None])[:, 0], of_best, atol=1e-4, rtol=1e-4
    )
    assert vocabulary > LIKELIEST
    assert LIMIT < CHUNK  # else the next line would have nothing to compare


def test_a_text_longer_than_a_chunk_is_read_as_one(models, monkeypatch):
    answer = torch.randint(
        0, models.target.config.vocab_size, (30,), generator=torch.Generator().manual_seed(0)
    ).tolist()
    monkeypatch.setattr(models.target.generation_config, "repetition_penalty", 1.3)
    processors = processors_of(models.target, [1, 2])
    assert len(processors) == 1
    whole = read_laws(models.target, models.draft, [1, 2], answer, processors)
    monkeypatch.setattr("hf_lossy_assist.models.reading.CHUNK", 7)
    parts = read_laws(models.target, models.draft, [1, 2], answer, processors)
    for name in ("p", "q"):
        # Near ties may swap slots, which sorting undoes.
        torch.testing.assert_close(parts[name].sort(-1).values, whole[name].sort(-1).values, atol=1e-3, rtol=1e-3)
