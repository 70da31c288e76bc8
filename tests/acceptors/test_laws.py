"""Every rule accepts and corrects as published: exactly by its own code, and as often through the real loop.

Statistical tests use fixed seeds and a threshold of 4.5 standard errors, or a chi-square p-value of 1e-5: the
sample sizes catch an acceptance probability that is off by 0.02, and an output law that is off by 0.01 in any
token.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from hf_lossy_assist.acceptors import REGISTRY, decide
from hf_lossy_assist.core.distributions import Randomness
from hf_lossy_assist.core.messages import Verification
from tests.acceptors.exact import NEAR_FLOAT32, emitted
from tests.acceptors.fixtures import (
    ROWS_OF_TEXT,
    P,
    Q,
    Repeating,
    V,
    assert_leaves,
    generate,
    law_of,
    needs_no_distribution,
)
from tests.acceptors.table import PUBLISHED, ROWS, Row, one_hot, row_id
from tests.nightly import spread
from tests.tiny_models import constant

SAMPLING = pytest.mark.parametrize("do_sample", [False, True], ids=["greedy", "sampling"])
MODES = {row.mode: row for row in ROWS}.values()
EVERY_MODE = pytest.mark.parametrize("row", MODES, ids=row_id)
DROPPING = [row for row in ROWS if row.mode == "dropmatch"]
WITHOUT_Q = [row for row in ROWS if needs_no_distribution(row)]
# At the usual laws some bounds of some rules say nothing; others are sure, nearly sure, or of nothing.
LAWS = [(P, Q), ([0.97, 0.012, 0.008, 0.005, 0.003, 0.002], Q), ([0.78, 0.18, 0.02, 0.01, 0.006, 0.004], Q)]
LAWS += [([0.24, 0.165, 0.16, 0.155, 0.145, 0.135], P)]
# SPRINTER does not judge token by token, so these laws are not its own; see test_sprinter.
AHEAD = {"sprinter"}


def test_every_rule_has_a_row():
    assert {row.mode for row in ROWS} == set(REGISTRY) - AHEAD


@SAMPLING
@pytest.mark.parametrize("row", [row for row in (*ROWS, *PUBLISHED) if row not in DROPPING], ids=row_id)
def test_one_position(row: Row, do_sample: bool):
    usual, target = law_of(do_sample)
    for p, q in LAWS:
        law = replace(usual, p=np.array(p), q=np.array(q))
        found = emitted(row.rule(target), law.p, law.q, do_sample=do_sample, hidden=target.h.detach().expand(2, -1))
        keeps = row.acceptance(law, row.config).astype(float)
        np.testing.assert_allclose(found.keeps, keeps, atol=NEAR_FLOAT32)
        rejected, corrections = keeps < 1, np.broadcast_to(row.correction(law), (V, V))
        np.testing.assert_allclose(found.corrections[rejected], corrections[rejected], atol=NEAR_FLOAT32)


@SAMPLING
@pytest.mark.parametrize("row", [row for row in WITHOUT_Q if row not in DROPPING], ids=row_id)
def test_a_draft_without_a_distribution(row: Row, do_sample: bool):
    """To the rule, the draft was certain of each token: q(x) = 1."""
    law, target = law_of(do_sample)
    found = emitted(row.rule(target), law.p, law.q, False, do_sample, hidden=target.h.detach().expand(2, -1))
    for x in range(V):
        certain = replace(law, q=one_hot(x, V))
        keeps = row.acceptance(certain, row.config).astype(float)[x]
        np.testing.assert_allclose(found.keeps[x], keeps, atol=NEAR_FLOAT32)
        if keeps < 1:
            correction = np.broadcast_to(row.correction(certain), (V, V))[x]
            np.testing.assert_allclose(found.corrections[x], correction, atol=NEAR_FLOAT32)


@SAMPLING
@pytest.mark.parametrize(
    ("row", "drafted"),
    [*((row, None) for row in DROPPING), *((row, x) for row in DROPPING if row in WITHOUT_Q for x in (0, 2, 4))],
    ids=lambda x: row_id(x) if isinstance(x, Row) else x,
)
def test_one_position_of_dropped_heads(row: Row, drafted: int | None, do_sample: bool):
    """Their masks are drawn, so 60,000 rounds are compared with a simulation."""
    law, target = law_of(do_sample)
    rows, rule, randomness, q = 60_000, row.rule(target), Randomness(7), torch.tensor(Q)
    law = law if drafted is None else replace(law, q=one_hot(drafted, V))
    tokens = randomness.categorical(torch.tensor(law.q).expand(rows, -1))
    tokens = tokens if do_sample else torch.full((rows,), int(law.q.argmax()))
    dropped = target.h * randomness.keep_mask((rows, rule.num_paths, target.h.numel()), rule.dropout, target.h)
    paths = (dropped @ target.lm_head.weight.T).detach()[:, :, None]
    logits, draft = torch.tensor(P).log().expand(rows, 2, -1), q.log().expand(rows, 1, -1)
    v = Verification(
        tokens[:, None], logits, draft if drafted is None else None, do_sample, randomness,
        dropped_logits=paths, centroid_logits=paths.mean(1),
    )  # fmt: skip
    decision = decide(rule, v)
    assert_leaves(row, law, torch.where(decision.n_accepted == 1, tokens, decision.next_token).numpy())


@EVERY_MODE
def test_lossless_settings_have_the_target_s_law(row: Row):
    target = constant(P)
    rule = replace(row, config=dict(REGISTRY[row.mode].lossless_at)).rule(target)
    logits = torch.tensor(P).log()
    read = {"hidden": target.h.detach().expand(2, -1), "dropped_logits": logits.expand(3, 1, -1)}
    read["centroid_logits"] = logits.expand(1, -1)
    for do_sample in filter(rule.is_lossless, (False, True)):
        found = emitted(rule, np.array(P), np.array(Q), do_sample=do_sample, **read)
        wanted = np.array(P) if do_sample else one_hot(np.argmax(P), V)
        np.testing.assert_allclose(found.law, wanted, atol=NEAR_FLOAT32)


@spread(row=MODES, do_sample=[True, False])
def test_acceptance_through_the_loop(row: Row, do_sample: bool):
    (law, target), draft = law_of(do_sample), constant(Q, seed=5)
    before = torch.random.get_rng_state()
    run = generate(target, draft, 60, row, do_sample, rows=ROWS_OF_TEXT).lossy_stats
    assert torch.equal(before, torch.random.get_rng_state()), "a seed leaves torch's global generator alone"
    kept = row.acceptance(law, row.config).astype(float)
    expected = (law.q * kept).sum() if do_sample else kept[law.q.argmax()]
    trials = run.accepted + run.corrected
    error = math.sqrt(expected * (1 - expected) / trials + 0.25 / 40_000 * ("dropout" in row.config))
    assert abs(run.accepted / trials - expected) <= 4.5 * error + 1e-9


@pytest.mark.parametrize("row", [row for row in WITHOUT_Q if row.mode in ("lossless", "ears", "typical")], ids=row_id)
def test_acceptance_of_a_draft_without_a_distribution_through_the_loop(row: Row):
    law, target = law_of(do_sample=True)
    kept = row.acceptance(replace(law, q=one_hot(1, V)), row.config).astype(float)[1]
    ids = torch.ones(ROWS_OF_TEXT, 1, dtype=torch.long)
    run = target.generate(
        input_ids=ids, attention_mask=ids, candidate_generator=lambda **_: Repeating(1), do_sample=True, top_k=0,
        max_new_tokens=60, return_dict_in_generate=True, **row.keywords(target, None, seed=3),
    ).lossy_stats  # fmt: skip
    trials = run.accepted + run.corrected
    assert abs(run.accepted / trials - kept) <= 4.5 * math.sqrt(kept * (1 - kept) / trials) + 1e-9


@pytest.mark.parametrize("gamma", [1, 3, 7])
def test_lossless_tokens_per_round_match_the_closed_form(gamma: int):
    alpha = np.minimum(P, Q).sum()
    run = generate(constant(P), constant(Q, seed=5), 400, "lossless", True, gamma, rows=10).lossy_stats
    expected = (1 - alpha ** (gamma + 1)) / (1 - alpha)
    # A round's length is at most gamma + 1, so its standard deviation is at most half of that.
    assert abs(run.tokens_per_round - expected) < 4.5 * (gamma + 1) / 2 / math.sqrt(run.rounds)


@pytest.mark.parametrize("row", ROWS, ids=row_id)
def test_a_lossy_setting_is_reported_as_such(row: Row):
    rule = row.rule(constant(P))
    assert rule.is_lossless(do_sample=rule.relaxes != "greedy") == (row.mode == "lossless")
