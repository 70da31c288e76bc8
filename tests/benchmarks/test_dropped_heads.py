"""DropMatch's tables, against the plain model and against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks import dropped_heads
from hf_lossy_assist.acceptors import DropMatch
from hf_lossy_assist.core.distributions import Randomness
from hf_lossy_assist.evaluation.evaluate import evaluate
from tests.small_pair import PROBLEMS

PATHS = 5


@pytest.fixture(scope="module")
def responses(pair):
    return dropped_heads.own_texts(pair, PROBLEMS, batch_size=4)


def test_batched_responses_are_those_of_single_prompts(pair, responses):
    for example, text in zip(pair.task.examples("test", PROBLEMS), responses, strict=True):
        ids = pair.tokenizer(example.prompt, return_tensors="pt")["input_ids"]
        alone = pair.target.generate(input_ids=ids, do_sample=False, max_new_tokens=20)
        assert torch.cat(text).tolist() == alone[0].tolist()


def test_undropped_paths_answer_like_the_plain_model_and_dropped_ones_differ(pair):
    plain = evaluate(pair.target, tokenizer=pair.tokenizer, task=pair.task, modes="plain", limit=PROBLEMS)
    assert plain.modes["plain"].score == 0.5
    rows = list(dropped_heads.path_accuracies(pair, [0.0, 0.5], num_paths=2, problems=PROBLEMS))
    assert [(row.dropout, row.path) for row in rows] == [(0.0, 1), (0.0, 1), (0.0, 2), (0.5, 1), (0.5, 2)]
    assert [row.accuracy for row in rows[:3]] == [0.5] * 3
    assert all(row.accuracy < 0.5 for row in rows[3:])
    assert not pair.target.get_output_embeddings()._forward_pre_hooks


def test_a_path_drops_a_fresh_mask_at_every_step(pair):
    """Replayed by hand: one draw of the generator per step, on the plain forward's hidden state."""
    example = pair.task.examples("test", 1)[0]
    ids = pair.tokenizer(example.prompt, return_tensors="pt")["input_ids"]
    with dropped_heads.dropped_head(pair.target, 0.4, Randomness(7)):
        out = pair.target.generate(input_ids=ids, do_sample=False, max_new_tokens=8)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for _ in range(8):
            hidden = pair.target.model(input_ids=ids).last_hidden_state[:, -1:]
            mask = torch.empty_like(hidden).bernoulli_(0.6, generator=generator) / 0.6
            ids = torch.cat([ids, pair.target.lm_head(hidden * mask).argmax(-1)], dim=1)
    assert out.tolist() == ids.tolist()


def test_without_dropout_all_paths_agree_with_the_target(pair, responses):
    *fewer, all_paths = dropped_heads.agreements(pair.target, responses, 0.0, num_paths=PATHS)
    assert [(row.votes, row.positions, row.mean_probability) for row in fewer] == [
        (votes, 0, None) for votes in range(1, PATHS)
    ]
    best = []
    for given, said in responses:
        with torch.no_grad():
            logits = pair.target(input_ids=torch.cat([given, said])[None]).logits
        p = logits.softmax(-1)[0, len(given) - 1 : -1]
        assert (p.argmax(-1) == said).all()
        best.append(p.amax(-1))
    assert (all_paths.votes, all_paths.share) == (PATHS, 1.0)
    assert all_paths.positions == sum(len(said) for _, said in responses)
    assert all_paths.mean_probability == pytest.approx(torch.cat(best).mean().item(), rel=1e-5)


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def js(a, b):
    m = (a + b) / 2
    return 0.5 * (a * np.log(a / m)).sum(-1) + 0.5 * (b * np.log(b / m)).sum(-1)


def by_hand(pair, responses, dropout, seed):
    """Return, position by position: votes, p of the majority, both divergences, whether q's argmax is the majority."""
    generator = torch.Generator().manual_seed(seed)
    weight = pair.target.lm_head.weight.detach().double().numpy()
    rows = []
    for given, said in responses:
        ids = torch.cat([given, said])[None, :-1]
        start, n = len(given) - 1, len(said)
        with torch.no_grad():
            hidden = pair.target.model(input_ids=ids).last_hidden_state[0, start:].double().numpy()
            q = softmax(pair.draft(input_ids=ids).logits[0, start:].double().numpy())
        keep = torch.empty(1, PATHS, n, hidden.shape[-1]).bernoulli_(1 - dropout, generator=generator)[0].numpy()
        z = (keep * hidden / (1 - dropout)) @ weight.T
        p, paths, centroid = softmax(hidden @ weight.T), softmax(z), softmax(z.mean(0))
        for i in range(n):
            y = z[:, i].argmax(-1)
            counts = np.bincount(y, minlength=len(weight))
            winner = np.lexsort((centroid[i], counts))[-1]
            rows.append(
                (
                    counts[winner],
                    p[i, winner],
                    js(q[i], centroid[i]),
                    js(paths[:, i], centroid[i]).max(),
                    q[i].argmax() == winner,
                )
            )
    return (np.array(column) for column in zip(*rows, strict=True))


@pytest.mark.parametrize("dropout", [0.1, 0.4])
def test_rows_agree_with_numpy(pair, responses, dropout):
    votes, p, draft_js, path_js, match = by_hand(pair, responses, dropout, seed=3)
    for row in dropped_heads.agreements(pair.target, responses, dropout, num_paths=PATHS, seed=3):
        mask = votes == row.votes
        assert (row.positions, row.share) == (mask.sum(), pytest.approx(mask.mean()))
        if mask.any():
            assert row.mean_probability == pytest.approx(p[mask].mean(), rel=1e-4)
    rows = dropped_heads.divergences(pair.target, pair.draft, responses, dropout, num_paths=PATHS, seed=3)
    inside = draft_js <= path_js
    masks = {"dispersed": inside, "concentrated": match & ~inside, "rejected": ~match & ~inside}
    assert [row.case for row in rows] == list(masks)
    for row in rows:
        mask = masks[row.case]
        assert (row.positions, row.share) == (mask.sum(), pytest.approx(mask.mean()))
        if mask.any():
            assert row.draft_js == pytest.approx(draft_js[mask].mean(), rel=1e-4)
            assert row.path_js == pytest.approx(path_js[mask].mean(), rel=1e-4)
        else:
            assert (row.draft_js, row.path_js) == (None, None)
            assert dropout > 0.1, "at this dropout the models are such that every case occurs"


def test_the_cases_are_those_of_the_rule(pair, responses):
    rule = DropMatch(num_paths=PATHS, dropout=0.3)
    randomness = Randomness(5)
    kept = sum(
        int(rule.keep(dropped_heads.verify_along(pair.target, r, rule, randomness, pair.draft)).sum())
        for r in responses
    )
    rows = dropped_heads.divergences(pair.target, pair.draft, responses, 0.3, num_paths=PATHS, seed=5)
    assert kept == rows[0].positions + rows[1].positions
    assert sum(row.positions for row in rows) == sum(len(said) for _, said in responses)
