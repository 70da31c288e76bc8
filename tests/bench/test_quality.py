"""Right answers, their intervals, and measured acceptance beside closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from hf_lossy_assist.bench.contenders import Models, TargetAlone, WithRule
from hf_lossy_assist.bench.predictions import predict
from hf_lossy_assist.bench.quality import answers, judge, qualities
from hf_lossy_assist.bench.trials import Batch, Workload
from tests.models import constant, noisy_copy, prompt, tiny


def test_intervals_and_paired_differences():
    rng = np.random.default_rng(0)
    reference = (rng.random(400) < 0.9).tolist()
    # Of the right ones 5 % go wrong; a paired interval sees that, two separate ones would not.
    other = [right and rng.random() > 0.05 for right in reference]
    alone, lossy = qualities({"lossless": reference, "lossy": other}, "lossless")
    n, k = 400, sum(reference)
    z = stats.norm.ppf(0.975)
    centre, half = (k + z**2 / 2) / (n + z**2), z * np.sqrt(k * (n - k) / n + z**2 / 4) / (n + z**2)
    assert (alone.low, alone.high) == (pytest.approx(centre - half), pytest.approx(centre + half))
    assert (alone.difference, alone.margin, alone.reference) == (None, None, None)
    changed = sum(a != b for a, b in zip(reference, other, strict=True))
    assert lossy.difference == pytest.approx(-changed / n)
    assert lossy.margin == pytest.approx(1.96 * np.sqrt(changed / n * (1 - changed / n) / (n - 1)))
    assert lossy.difference + lossy.margin < 0 < lossy.high - alone.low
    assert [q.difference for q in qualities({"a": [True], "b": [False]}, "not there")] == [None, None]


def test_responses_are_judged_by_the_task(pair):
    models, work = Models(pair.target, pair.draft), Workload(max_new_tokens=20)
    examples = pair.task.examples("test", 6)
    batches = [
        Batch(ids := torch.tensor([pair.task.encode(e, pair.tokenizer)]), torch.ones_like(ids), i)
        for i, e in enumerate(examples)
    ]
    said = list(answers(models, TargetAlone(), batches, work))
    assert judge(pair.tokenizer, pair.task, examples, said) == [False, True] * 3


@pytest.mark.parametrize(
    ("rule", "settings"), [("lossless", {}), ("ears", {}), ("ears", {"beta": 0.2})], ids=["lossless", "0.1", "0.2"]
)
def test_what_is_kept_is_what_the_closed_form_says(rule, settings):
    """Constant laws: every position has the same p and q, so the closed form is one number. 4σ."""
    p, q, temperature = [0.5, 0.2, 0.1, 0.1, 0.05, 0.05], [0.1, 0.3, 0.2, 0.2, 0.1, 0.1], 0.8
    models = Models(constant(p), constant(q))
    models.target.generation_config.eos_token_id = None
    ids = torch.tensor([[1, 2, 3]])
    batches = [Batch(ids, torch.ones_like(ids), i) for i in range(6)]
    work = Workload(150, temperature=temperature, seed=1)
    row = predict(models, WithRule("x", rule, settings, 4), batches, work)

    p, q = (np.array(law) ** (1 / temperature) for law in (p, q))
    p, q = p / p.sum(), q / q.sum()
    beta = {"lossless": 0.0, "ears": settings.get("beta", 0.1)}[rule]
    wanted = np.minimum(q, p + beta * (1 - p.max()) * q).sum()
    assert row.predicted == pytest.approx(wanted, abs=1e-5)
    assert row.gain == pytest.approx(wanted - np.minimum(p, q).sum(), abs=1e-5)
    assert row.bound == pytest.approx(beta * (1 - p.max()) * q[p < q].sum(), abs=1e-5)
    assert row.gain <= row.bound + 1e-9
    assert row.positions > 500
    assert row.margin == pytest.approx(1.96 * np.sqrt(wanted * (1 - wanted) / row.positions), rel=1e-3)
    assert abs(row.measured - row.predicted) < 4 / 1.96 * row.margin


def test_positions_are_those_that_were_judged():
    """On models whose laws change from place to place, each position has the laws of the text before it."""
    target = tiny()
    target.generation_config.eos_token_id = None
    models = Models(target, noisy_copy(target, 0.05))
    ids = prompt(5)
    batches = [Batch(ids, torch.ones_like(ids), i) for i in range(4)]
    row = predict(models, WithRule("lossless", gamma=3), batches, Workload(40, temperature=1.0))
    assert 0.2 < row.predicted < 0.999
    assert abs(row.measured - row.predicted) < 4 / 1.96 * row.margin
    assert (row.gain, row.bound) == (0.0, 0.0)
