"""Every rule accepts and corrects as published, through the real loop and on its own.

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
from hf_lossy_assist.generation.config import LossyConfig
from tests.acceptors.fixtures import (
    ROUNDS,
    ROWS_OF_TEXT,
    P,
    Q,
    Repeating,
    assert_output_law,
    chi_square_p,
    generate,
    law_of,
    needs_no_distribution,
)
from tests.acceptors.table import PUBLISHED, ROWS, Row, one_hot, row_id
from tests.tiny_models import constant, noisy_copy, prompt, tiny

parse = LossyConfig.from_fields

EVERY_ROW = pytest.mark.parametrize("row", ROWS, ids=row_id)
SAMPLING = pytest.mark.parametrize("do_sample", [False, True], ids=["greedy", "sampling"])


# It does not judge token by token, so these laws are not its own; see test_sprinter.
AHEAD = {"sprinter"}
EVERY_LAW = pytest.mark.parametrize("row", [*ROWS, *PUBLISHED], ids=row_id)


POINT_MASS_ROWS = [*filter(needs_no_distribution, ROWS)]


def test_every_rule_has_a_row():
    assert {row.mode for row in ROWS} == set(REGISTRY) - AHEAD


@SAMPLING
@pytest.mark.parametrize("row", {row.mode: row for row in ROWS}.values(), ids=row_id)
def test_acceptance_through_the_loop(row: Row, do_sample: bool):
    law, target = law_of(do_sample)
    run = generate(target, constant(Q, seed=5), 60, row, do_sample, rows=ROWS_OF_TEXT).lossy_stats
    kept = row.acceptance(law, row.config).astype(float)
    expected = (law.q * kept).sum() if do_sample else kept[law.q.argmax()]
    trials = run.accepted + run.corrected
    error = math.sqrt(expected * (1 - expected) / trials + 0.25 / 40_000 * ("dropout" in row.config))
    assert abs(run.accepted / trials - expected) <= 4.5 * error + 1e-9


@SAMPLING
@EVERY_LAW
def test_output_law_of_one_position(row: Row, do_sample: bool):
    randomness, q = Randomness(7), torch.tensor(Q)
    tokens = randomness.categorical(q.expand(ROUNDS, -1)) if do_sample else torch.full((ROUNDS,), int(q.argmax()))
    law, target = law_of(do_sample)
    assert_output_law(row, law, target, tokens, randomness, q.log().expand(ROUNDS, 1, -1))


@SAMPLING
@pytest.mark.parametrize("x", range(0, len(P), 2))
@pytest.mark.parametrize("row", POINT_MASS_ROWS, ids=row_id)
def test_output_law_of_a_draft_without_a_distribution(row: Row, x: int, do_sample: bool):
    """To the rule, the draft was certain of the token: q(x) = 1."""
    law, target = law_of(do_sample)
    certain = replace(law, q=one_hot(x, len(P)))
    assert_output_law(row, certain, target, torch.full((ROUNDS,), x), Randomness(7), None)


@pytest.mark.parametrize(
    "row", [row for row in POINT_MASS_ROWS if row.mode in ("lossless", "ears", "typical")], ids=row_id
)
def test_acceptance_of_a_draft_without_a_distribution_through_the_loop(row: Row):
    law, target = law_of(do_sample=True)
    kept = row.acceptance(replace(law, q=one_hot(1, len(P))), row.config).astype(float)[1]
    mode, config = row.mode, {"seed": 3, **row.config}
    ids = torch.ones(ROWS_OF_TEXT, 1, dtype=torch.long)
    run = target.generate(
        input_ids=ids,
        attention_mask=ids,
        candidate_generator=lambda **_: Repeating(1),
        lossy_mode=mode,
        lossy_config=config,
        do_sample=True,
        top_k=0,
        max_new_tokens=60,
        return_dict_in_generate=True,
    ).lossy_stats
    trials = run.accepted + run.corrected
    assert abs(run.accepted / trials - kept) <= 4.5 * math.sqrt(kept * (1 - kept) / trials) + 1e-9


@pytest.mark.parametrize("gamma", [1, 3, 7])
def test_lossless_tokens_per_round_match_the_closed_form(gamma: int):
    alpha = np.minimum(P, Q).sum()
    run = generate(constant(P), constant(Q, seed=5), 400, "lossless", True, gamma, rows=10).lossy_stats
    expected = (1 - alpha ** (gamma + 1)) / (1 - alpha)
    # A round's length is at most gamma + 1, so its standard deviation is at most half of that.
    assert abs(run.tokens_per_round - expected) < 4.5 * (gamma + 1) / 2 / math.sqrt(run.rounds)


def greedily(target, draft, mode=None, config=None, head=None):
    drafting = {} if draft is None else {"assistant_model": draft, "num_assistant_tokens": 5}
    return target.generate(
        prompt(), **drafting, lossy_mode=mode, lossy_config=config, lossy_head=head, max_new_tokens=40,
        eos_token_id=None, do_sample=False, return_dict_in_generate=True,
    )  # fmt: skip


@pytest.mark.parametrize("row", {row.mode: row for row in ROWS}.values(), ids=row_id)
def test_lossless_setting_equals_lossless_greedily(row: Row):
    target = tiny()
    draft = noisy_copy(target)
    out = greedily(target, draft, row.mode, dict(REGISTRY[row.mode].lossless_at) or None, row.head(target, draft))
    assert out.sequences.tolist() == greedily(target, None).sequences.tolist()
    assert out.lossy_stats.lossless
    assert out.lossy_stats.accepted_lossy == 0


@pytest.mark.parametrize("row", [row for row in ROWS if REGISTRY[row.mode].lossless_when_sampling], ids=row_id)
def test_lossless_setting_samples_the_target_s_law(row: Row):
    setting = replace(row, config=dict(REGISTRY[row.mode].lossless_at))
    out = generate(constant(P), constant(Q, seed=5), 80, setting, True, rows=ROWS_OF_TEXT)
    counts = np.bincount(out.sequences[:, 1:].flatten(), minlength=len(P))
    assert chi_square_p(counts, np.array(P)) > 1e-5
    assert chi_square_p(counts, np.array(Q)) < 1e-9, "the test can tell p from q"
    assert out.lossy_stats.lossless


@EVERY_ROW
def test_a_lossy_setting_is_reported_as_such(row: Row):
    rule = row.rule(constant(P))
    assert rule.is_lossless(do_sample=rule.relaxes != "greedy") == (row.mode == "lossless")


@SAMPLING
@pytest.mark.parametrize("row", [row for row in ROWS if row.mode != "ensemble"], ids=row_id)
def test_forbidden_tokens_are_never_kept(row: Row, do_sample: bool):
    """The draft insists on one token, which a processor forbids the target (but the test's draft ignores)."""
    rule = row.rule(constant(P))
    logits = torch.zeros(1, 4, 6)
    logits[..., 2] = -torch.inf
    draft_logits = torch.full((1, 3, 6), -20.0)
    draft_logits[..., 2] = 0.0
    v = Verification(
        tokens=torch.full((1, 3), 2),
        logits=logits,
        draft_logits=draft_logits,
        do_sample=do_sample,
        randomness=Randomness(0),
        dropped_logits=torch.zeros(1, 3, 3, 6),
        centroid_logits=torch.zeros(1, 3, 6),
        hidden=constant(P).h.detach().expand(1, 4, -1),
    )
    decision = decide(rule, v)
    assert decision.n_accepted.item() == 0
    assert decision.next_token.item() != 2


@EVERY_ROW
@SAMPLING
def test_a_seed_makes_a_run_reproducible(row: Row, do_sample: bool):
    target, draft = constant(P), constant(Q, seed=5)
    before = torch.random.get_rng_state()
    runs = [generate(target, draft, 60, row, do_sample) for _ in range(2)]
    assert runs[0].sequences.tolist() == runs[1].sequences.tolist()
    assert torch.equal(before, torch.random.get_rng_state()), "torch's global generator is left alone"


def test_rules_of_a_list_share_the_work():
    run = generate(constant(P), constant(Q, seed=5), 600, (["ears", "topk"], {"topk": {"k": 1}}), True).lossy_stats
    assert set(run.accepted_by) == {"ears", "topk"}
    assert sum(run.accepted_by.values()) == run.accepted
    both = parse({"all_of": ["ears", "topk"]}, {"topk": {"k": 1}}).rule
    either = parse(["ears", "topk"], {"topk": {"k": 1}}).rule
    rows = 2000
    v = Verification(
        tokens=Randomness(0).categorical(torch.tensor(Q).expand(rows, -1))[:, None],
        logits=torch.tensor(P).log().expand(rows, 2, -1),
        draft_logits=torch.tensor(Q).log().expand(rows, 1, -1),
        do_sample=True,
        randomness=Randomness(1),
    )
    ears, top = (rule.keep(v) for rule in either.rules)
    assert torch.equal(either.keep(v), ears | top)
    assert torch.equal(both.keep(v), ears & top)
    assert (ears ^ top).any()
