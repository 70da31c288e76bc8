"""The ensemble rule agrees with transformers' own implementation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from transformers.generation.utils import _speculative_sampling

from hf_lossy_assist.acceptors import Ensemble, decide
from hf_lossy_assist.core.distributions import Randomness
from hf_lossy_assist.core.messages import Verification
from tests.tiny_models import noisy_copy, prompt, tiny


@pytest.mark.parametrize("weight", [0.2, 0.5, 0.9])
def test_greedy_text_equals_stock(weight: float):
    target = tiny("llama")
    draft = noisy_copy(target, 0.03)
    draft.generation_config.num_assistant_tokens = 5
    draft.generation_config.assistant_confidence_threshold = 0.0
    draft.generation_config.eos_token_id = None  # stock drafts stop there, and the mixture is for drafted tokens
    kwargs = {"input_ids": prompt(), "max_new_tokens": 48, "eos_token_id": None, "do_sample": False}
    stock = target.generate(**kwargs, assistant_model=draft, assistant_ensemble_weight=weight)
    ours = target.generate(
        **kwargs,
        assistant_model=draft,
        lossy_mode="ensemble",
        lossy_config={"weight": weight},
        return_dict_in_generate=True,
    )
    assert ours.sequences.tolist() == stock.tolist()
    assert weight > 0.8 or ours.lossy_stats.accepted_lossy > 0


def test_sampling_law_equals_stock():
    """Accepted lengths and next tokens of 20,000 rounds: chi-square of the joint table, p > 1e-5."""
    n, vocabulary, rounds = 3, 5, 20_000
    generator = torch.Generator().manual_seed(0)
    p, q = torch.randn(1, n + 1, vocabulary, generator=generator), torch.randn(1, n, vocabulary, generator=generator)
    table = np.zeros((2, n + 1, vocabulary))
    torch.manual_seed(1)
    draws = torch.multinomial(q[0].softmax(-1), rounds, replacement=True).T
    for tokens in draws[:, None]:
        valid, matches = _speculative_sampling(tokens, q, n, p, assistant_ensemble_weight=0.5)
        table[0, int(matches), int(valid[0, -1])] += 1
    v = Verification(
        tokens=draws,
        logits=p.expand(rounds, -1, -1),
        draft_logits=q.expand(rounds, -1, -1),
        do_sample=True,
        randomness=Randomness(2),
    )
    decision = decide(Ensemble(weight=0.5), v)
    np.add.at(table[1], (decision.n_accepted.numpy(), decision.next_token.numpy()), 1)
    flat = table.reshape(2, -1)
    assert stats.chi2_contingency(flat[:, flat.sum(0) > 0]).pvalue > 1e-5
