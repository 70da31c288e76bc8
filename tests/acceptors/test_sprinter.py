"""SPRINTER has the law of its theorem, and meets the target as often as it should.

Chi-square tests use p > 1e-5 on 6,000 tokens: they catch an output law that is off by 0.03 in any token.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hf_lossy_assist import LossyError
from hf_lossy_assist.acceptors import Ears, Lossless, Sprinter
from hf_lossy_assist.generation.config import LossyConfig
from tests.acceptors.fixtures import P, Q, Simulated, V, chi_square_p, telling
from tests.acceptors.fixtures import verifier_head as head_for
from tests.tiny_models import constant, tiny

parse = LossyConfig.from_fields
TEXTS = 50


def sample(mode, head, draft, **config):
    ids = torch.ones(TEXTS, 1, dtype=torch.long)
    return constant(P).generate(
        ids, attention_mask=ids, assistant_model=draft, lossy_mode=mode, lossy_head=head,
        lossy_config={"seed": 3, **(config or {"max_draft": 10**6})}, do_sample=True, top_k=0, max_new_tokens=120,
        return_dict_in_generate=True,
    )  # fmt: skip


@pytest.mark.parametrize(("tpr", "fpr"), [(0.9, 0.3), (1.0, 0.0), (0.8, 1.0)])
def test_output_law_of_theorem_1(tpr: float, fpr: float):
    draft = telling(Q)
    head = head_for(constant(P), draft, "token", cls=Simulated).rates(tpr, fpr)
    out = sample("sprinter", head, draft)
    counts = np.bincount(out.sequences[:, 1:].flatten(), minlength=V)
    law = (1 - fpr) * np.array(P) + fpr * np.array(Q)
    assert chi_square_p(counts, law) > 1e-5
    if fpr:
        assert chi_square_p(counts, np.array(P)) < 1e-9, "the test can tell the law from p"


def test_runs_are_as_long_as_the_rates_say():
    """Each token passes with probability a·Q(acceptable) + b·Q(other), independently: runs are geometric."""
    draft = telling(Q)
    head = head_for(constant(P), draft, "token", cls=Simulated).rates(0.9, 0.2)
    stats = sample("sprinter", head, draft).lossy_stats
    acceptable = np.array(Q)[np.array(Q) <= np.array(P)].sum()
    passing = 0.9 * acceptable + 0.2 * (1 - acceptable)
    expected, spread = passing / (1 - passing), np.sqrt(passing) / (1 - passing)
    assert abs(stats.mean_run - expected) < 4.5 * spread / np.sqrt(stats.runs)
    assert sum(i * n for i, n in enumerate(stats.run_histogram)) == stats.unverified
    assert stats.rounds <= stats.runs <= stats.rounds + TEXTS


def test_another_rule_may_decide_what_the_verifier_leaves():
    target = tiny()
    head = head_for(target, target)
    rule = parse(["sprinter", "ears"], {"sprinter": {"threshold": 0.7}}, head).rule
    assert rule.rules == (Sprinter(head, 0.7, base=None), Ears())
    assert rule.unverified_drafting.threshold == 0.7
    assert parse("sprinter", None, head).rule.base == Lossless()
    with pytest.raises(LossyError, match="sprinter"):
        parse({"all_of": ["sprinter", "ears"]}, None, head)
    draft = telling(Q)
    never = head_for(constant(P), draft, "token", cls=Simulated).rates(0.0, 0.0)
    stats = sample(["sprinter", "ears"], never, draft, ears={"beta": 0.2}).lossy_stats
    p, q = np.array(P), np.array(Q)
    expected = (q * np.minimum(1, p / q + 0.2 * (1 - p.max()))).sum()
    assert abs(stats.acceptance_rate - expected) < 4.5 * np.sqrt(expected * (1 - expected) / stats.drafted)
    assert set(stats.accepted_by) <= {"sprinter", "ears"}
