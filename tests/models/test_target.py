"""The target judges what it is to decide, and keeps what was committed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import DynamicCache, LogitsProcessorList, PreTrainedModel

from hf_lossy_assist.acceptors import Acceptor, Lossless
from hf_lossy_assist.compat import CACHE, PlainForwardInputs
from hf_lossy_assist.core.distributions import Randomness
from hf_lossy_assist.core.messages import Commit, Draft, Verification
from hf_lossy_assist.core.texts import Texts
from hf_lossy_assist.models.runner import DynamicCacheRunner
from hf_lossy_assist.models.target import Target, TargetReader
from tests.decoding.fixtures import PAD, longer, random_round, random_tokens, rectangle
from tests.models.references import assert_last_logits, inputs_of
from tests.tiny_models import VOCAB, tiny

N = 5


def target_for(model: PreTrainedModel, texts: list[list[int]], acceptor: Acceptor, processors=()) -> Target:
    carried = {**inputs_of(texts), CACHE: DynamicCache(), "use_cache": True, "logits_to_keep": 1}
    forwards = DynamicCacheRunner(PlainForwardInputs(model), carried, len(texts[0]))
    return Target(forwards, TargetReader(model, LogitsProcessorList(processors), acceptor, False, Randomness(0)))


def draft_of(rows: int, seed: int = 0) -> Draft:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.tensor([random_tokens(N, generator) for _ in range(rows)])
    logits = torch.randn(rows, N, VOCAB, generator=generator)
    return Draft(tokens, logits, hidden=torch.randn(rows, N, 4, generator=generator))


def at(verification: Verification, row: int, column: int) -> dict[str, torch.Tensor]:
    """Return all that is said about one token of a row, and about the one after it."""
    after = slice(column, column + 2)
    return {
        "tokens": verification.tokens[row, column],
        "logits": verification.logits[row, after],
        "hidden": verification.hidden[row, after],
        "draft_logits": verification.draft_logits[row, column],
        "draft_hidden": verification.draft_hidden[row, column],
    }


@torch.no_grad()
def test_it_judges_all_tokens_otherwise_up_to_each_row_s_length():
    model, texts = tiny(), [[5, 6, 7], [8, 9, 10]]
    draft = replace(draft_of(2), lengths=(5, 2))
    candidate = torch.cat([rectangle(texts), draft.tokens], dim=1)
    verification, _ = target_for(model, texts, Lossless()).verify(candidate, draft)
    assert_last_logits(model, verification.logits, candidate.tolist())
    assert verification.drafted.tolist() == [[True] * 5, [True, True, False, False, False]]
    assert verification.tokens.equal(draft.tokens)
    assert verification.draft_logits.equal(draft.logits)


def commit_of(layout: Texts, ids: torch.Tensor, tokens, counts, ended, verification) -> Commit:
    rows, padding = tuple(layout.rows), tuple(layout.left_padding)
    extended = torch.cat([ids, torch.tensor(tokens)], dim=1)
    return Commit(
        ids=extended, start=ids.shape[1], drafted=len(tokens[0]) - 1, accepted=tuple(n - 1 for n in counts),
        counts=tuple(counts), rows=rows, padding=padding, verification=verification,
        shift=layout.grow(extended, longer(layout, counts), ended),
    )  # fmt: skip


@pytest.mark.parametrize("rows", [1, 3])
@torch.no_grad()
def test_it_keeps_what_was_committed(rows: int):
    """The next verification is that of a target which has never seen the rest; of one row and of rows that differ."""
    model, generator = tiny(), torch.Generator().manual_seed(4)
    texts = [random_tokens(4, generator) for _ in range(rows)]
    target = target_for(model, texts, Lossless())
    layout, ids = Texts(rectangle(texts), PAD), rectangle(texts)
    with target.runner.in_use():
        for drafted in (3, 5, 0, 4):
            new = random_round(len(texts), drafted, generator, ends=0)
            draft = Draft(torch.tensor([tokens[:-1] for tokens in new.tokens], dtype=torch.long))
            candidate = [text + tokens[:-1] for text, tokens in zip(texts, new.tokens, strict=True)]
            verification, _ = target.verify(rectangle(candidate), draft)
            assert_last_logits(model, verification.logits, candidate)
            assert verification.logits_after is None  # so `replace(verification, logits=…)` leaves none behind
            commit = commit_of(layout, ids, new.tokens, new.counts, new.ended, verification)
            texts = new.after(texts)
            assert [commit.text(i)[0].tolist() for i in range(rows)] == texts
            target.keep(commit)
            ids = rectangle(texts)
            assert target.runner.seen < ids.shape[1]


@torch.no_grad()
def test_a_round_without_it_changes_nothing():
    model, texts = tiny(), [[5, 6, 7]]
    target, layout = target_for(model, texts, Lossless()), Texts(rectangle(texts), PAD)
    with target.runner.in_use():
        target.verify(rectangle(texts), Draft.empty(rectangle(texts)))
        before = target.runner.seen
        target.keep(commit_of(layout, rectangle(texts), [[8, 9]], [2], [False], None))
        assert target.runner.seen == before
