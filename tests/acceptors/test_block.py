"""Block verification: the output has the target's law exactly, and no rule that judges tokens alone keeps more.

Laws are computed by enumerating all drafts and all outcomes of the comparisons; see ``exact``.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_lossy_assist import LossyValueError, LossyVerification
from hf_lossy_assist.acceptors import Lossless, TopK, decide
from hf_lossy_assist.core.distributions import Randomness
from hf_lossy_assist.core.messages import Verification
from hf_lossy_assist.generation.config import LossyConfig
from tests.acceptors.exact import Tables, outcome
from tests.acceptors.fixtures import P, Q, V, chi_square_p, generate, telling
from tests.tiny_models import constant, noisy_copy, tiny

parse = LossyConfig.from_fields

BLOCK, TOKEN = Lossless("block"), Lossless("token")
TABLES = st.builds(
    lambda vocabulary, gamma, seed, zeros: Tables.random(vocabulary, gamma, np.random.default_rng(seed), zeros),
    st.integers(2, 3), st.integers(1, 3), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.3]),
)  # fmt: skip


@given(TABLES)
def test_the_output_has_the_target_s_law_and_is_as_long_as_token_by_token_or_longer(tables: Tables):
    block, token = outcome(BLOCK, "block", tables), outcome(TOKEN, "token", tables)
    np.testing.assert_allclose(block.law, tables.joint(), atol=2e-6)
    np.testing.assert_allclose(token.law, tables.joint(), atol=2e-6)
    assert block.kept >= token.kept - 1e-6
    if tables.gamma == 1:
        assert block.kept == pytest.approx(token.kept, abs=1e-6)


def test_more_is_kept_of_the_paper_s_example():
    """Two tokens, p = (1/3, 2/3) and q = (2/3, 1/3): 11/9 of two drafted tokens stay, and 10/9 token by token."""
    p, q = np.array([1 / 3, 2 / 3]), np.array([2 / 3, 1 / 3])
    tables = Tables([p, np.stack([p] * 2), np.stack([np.stack([p] * 2)] * 2)], [q, np.stack([q] * 2)])
    assert outcome(TOKEN, "token", tables).kept == pytest.approx(10 / 9, abs=1e-6)
    assert outcome(BLOCK, "block", tables).kept == pytest.approx(11 / 9, abs=1e-6)


@given(TABLES, st.booleans())
def test_drafts_may_end_by_what_has_been_drafted(tables: Tables, strict: bool):
    """Rows of a batch have different lengths, and ``stop_drafting`` ends a draft by its own tokens."""

    def lengths(draft: np.ndarray) -> int:
        return next((i for i, x in enumerate(draft, 1) if x == i % tables.vocabulary), tables.gamma)

    made = outcome(BLOCK, "block", tables, lengths, strict)
    np.testing.assert_allclose(made.law, tables.joint(), atol=2e-6)
    assert made.kept >= outcome(TOKEN, "token", tables, lengths).kept - 1e-6


def markov(seed: int, scale: float) -> torch.nn.Module:
    """Return a model whose law depends on the newest token."""
    model = telling(P)
    with torch.no_grad():
        noise = torch.randn(V, V, generator=torch.Generator().manual_seed(seed))
        model.lm_head.weight[:, -V:] += scale * noise
    return model


@pytest.mark.parametrize(("gamma", "config"), [(3, {}), (2, {"strict_first_n": 2})])
def test_texts_have_the_target_s_joint_law(gamma: int, config: dict):
    """Three tokens of 10,000 rows that stop drafting at different places, through ``generate()``."""
    target, draft = markov(0, 1.0), markov(1, 1.0)
    stop = {"stop_drafting": {"by": "confidence", "threshold": 0.3}} if gamma > 2 else {}
    lossy = ("lossless", {"verification": "block", **config, **stop})
    run = generate(target, draft, 3, lossy, True, gamma, rows=10_000)
    after = target(torch.arange(V)[:, None]).logits[:, -1].softmax(-1).detach().double().numpy()
    law = (after[1][:, None, None] * after[:, :, None] * after[None]).reshape(-1)
    places = torch.tensor([V * V, V, 1])
    counts = np.bincount((run.sequences[:, 1:4] * places).sum(-1), minlength=V**3)
    assert chi_square_p(counts, law) > 1e-5
    other = draft(torch.arange(V)[:, None]).logits[:, -1].softmax(-1).detach().double().numpy()
    wrong = (after[1][:, None, None] * other[:, :, None] * after[None]).reshape(-1)
    assert chi_square_p(counts, wrong) < 1e-9, "the test can tell laws apart"
    assert run.lossy_stats.lossless
    assert run.lossy_stats.accepted_lossy == 0
    assert run.lossy_stats.accepted > 0


def test_greedily_it_is_token_by_token():
    target = tiny()
    draft = noisy_copy(target)
    runs = [generate(target, draft, 40, ("lossless", {"verification": x}), False) for x in ("block", "token")]
    assert runs[0].sequences.tolist() == runs[1].sequences.tolist()
    assert runs[0].lossy_stats.accepted == runs[1].lossy_stats.accepted > 0


def test_drafts_are_decided_as_wholes_where_that_is_asked_for():
    target, draft = constant(P), constant(Q, seed=5)
    modes = {x: ("lossless", {"verification": x}) for x in ("block", "token")}
    block, token = (generate(target, draft, 60, mode, True, rows=20) for mode in modes.values())
    default = generate(target, draft, 60, "lossless", True, rows=20)
    assert default.sequences.tolist() == token.sequences.tolist() != block.sequences.tolist()
    assert block.lossy_stats.tokens_per_round > token.lossy_stats.tokens_per_round + 0.05


def test_transformers_own_loop_draws_the_same_text():
    target, draft = constant(P), constant(Q, seed=5)
    run = generate(target, draft, 60, ("lossless", {"verification": "block"}), True)
    settings = {"assistant_model": draft, "num_assistant_tokens": 4, "seed": 3, "verification": "block"}
    ids = torch.ones(1, 1, dtype=torch.long)
    with LossyVerification("lossless", target, **settings) as hook:
        text = target.generate(
            input_ids=ids, attention_mask=ids, assistant_model=draft, logits_processor=[hook], do_sample=True, top_k=0,
            max_new_tokens=60,
        )  # fmt: skip
    assert text.tolist() == run.sequences.tolist()
    assert hook.stats.accepted == run.lossy_stats.accepted
    with pytest.raises(LossyValueError, match="assistant_model"):
        LossyVerification("lossless", target, verification="block")


def test_thresholds_are_what_an_inspected_text_was_decided_by():
    target, draft = constant(P), constant(Q, seed=5)
    config = {"verification": "block", "inspect": True}
    records = generate(target, draft, 200, ("lossless", config), True).lossy_stats.records
    plain = generate(target, draft, 200, ("lossless", {"verification": "block"}), True).lossy_stats
    assert [x.fate for x in records] == list(plain.trace)
    said = [(x.fate, x.scores.quantities) for x in records if x.fate in ("accepted", "corrected")]
    assert {fate for fate, _ in said} == {"accepted", "corrected"}
    assert all(x["u"] >= x["h"] for fate, x in said if fate == "corrected")
    # The last token kept of a round is the last one below its threshold.
    ends = [a for a, b in pairwise(records) if a.fate == "accepted" and b.fate != "accepted"]
    assert all(x.scores.quantities["u"] < x.scores.quantities["h"] for x in ends)


def test_rules_of_a_list_judge_tokens_one_by_one():
    with pytest.raises(LossyValueError, match="verification"):
        parse(["topk", "lossless"], {"lossless": {"verification": "block"}})
    rows, n = 2000, 3
    logits, draft = torch.tensor(P).log().expand(rows, n + 1, -1), torch.tensor(Q).log().expand(rows, n, -1)
    tokens = Randomness(0).categorical(draft.softmax(-1))

    def decided(rule):
        return decide(rule, Verification(tokens, logits, draft, True, Randomness(1)))

    either = parse(["topk", "lossless"], {"topk": {"k": 1}}).rule
    kept = TopK(k=1, published=True).keep(Verification(tokens, logits, draft, True)) | decided(TOKEN).keep
    assert decided(either).keep.equal(kept)
    assert not decided(either).keep.equal(decided(BLOCK).keep)


@pytest.mark.parametrize("nearness", [0.0, 1e-7, 1e-4])
def test_thresholds_are_probabilities_where_target_and_draft_nearly_agree(nearness: float):
    generator = torch.Generator().manual_seed(0)
    draft = 3 * torch.randn(200, 6, 50, generator=generator)
    logits = draft + nearness * torch.randn(draft.shape, generator=generator)
    tokens = Randomness(0).categorical(draft[:, :-1].softmax(-1))
    v = Verification(tokens, logits, draft[:, :-1], True, Randomness(1))
    h = BLOCK.decider(v).quantities(v)["h"]
    assert ((h >= 0) & (h <= 1)).all()
    assert decide(BLOCK, v).complete.float().mean() > 0.99
