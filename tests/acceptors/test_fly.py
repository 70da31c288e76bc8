"""FLy's window, which reaches over positions, against a token-by-token reading of the paper."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hf_lossy_assist import LossyVerification
from hf_lossy_assist.acceptors import Fly, decide
from hf_lossy_assist.core.distributions import Randomness
from hf_lossy_assist.core.messages import Verification
from hf_lossy_assist.errors import warn_once
from tests.tiny_models import noisy_copy, prompt, tiny

VOCABULARY = 7


def normalised_entropy(logits: np.ndarray, k: int) -> float:
    top = np.sort(logits)[-k:]
    p = np.exp(top) / np.exp(top).sum()
    return -(p * np.log(p)).sum() / np.log(len(top))


def accepted(match: list[bool], unsure: list[bool], window: int) -> int:
    """Return how many drafted tokens stay: go through them, and look ahead at every mismatch."""
    for i, matches in enumerate(match):
        ahead = match[i + 1 : i + window]
        if not matches and not (unsure[i] and len(ahead) == window - 1 and all(ahead)):
            return i
    return len(match)


def verification(rows: int, n: int, do_sample: bool, seed: int = 0) -> Verification:
    """Laws of very different entropy, and drafts that often agree."""
    generator = torch.Generator().manual_seed(seed)
    sharpness = 10 ** torch.empty(rows, n + 1, 1).uniform_(-0.7, 1, generator=generator)
    logits = torch.randn(rows, n + 1, VOCABULARY, generator=generator) * sharpness
    draft_logits = logits[:, :-1] + 0.5 * torch.randn(rows, n, VOCABULARY, generator=generator)
    tokens = draft_logits.argmax(-1)
    if do_sample:
        tokens = torch.distributions.Categorical(logits=draft_logits).sample()
    return Verification(tokens, logits, draft_logits, do_sample, Randomness(seed))


@pytest.mark.parametrize("do_sample", [False, True], ids=["greedy", "sampling"])
@pytest.mark.parametrize(("window", "theta", "k"), [(1, 0.5, 7), (2, 0.3, 4), (3, 0.3, 15), (4, 0.7, 2), (9, 0.1, 3)])
def test_every_round_ends_where_the_paper_ends_it(window: int, theta: float, k: int, do_sample: bool):
    n, rows = 8, 400
    v = verification(rows, n, do_sample)
    decision = decide(Fly(window=window, theta=theta, k=k), v)
    p, q = v.logits.double().softmax(-1).numpy(), v.draft_logits.double().softmax(-1).numpy()
    lossy = 0
    for row in range(rows):
        x = v.tokens[row].tolist()
        if do_sample:
            match = [v.u[row, i].item() <= p[row, i, x[i]] / q[row, i, x[i]] for i in range(n)]
        else:
            match = [p[row, i].argmax() == x[i] for i in range(n)]
        unsure = [normalised_entropy(v.logits[row, i].double().numpy(), k) >= theta for i in range(n)]
        expected = accepted(match, unsure, window)
        assert decision.n_accepted[row] == expected
        lossy += expected > accepted(match, [False] * n, window)
    assert (lossy > 20) == (window < n), "the laws are of a kind that the window matters for"


@pytest.mark.parametrize(
    ("longest", "warns"),
    [
        ({"num_assistant_tokens": 2}, True),
        ({"num_assistant_tokens": 3}, False),
        ({"num_assistant_tokens": "auto"}, False),
        ({"num_assistant_tokens": 2, "num_assistant_tokens_schedule": "heuristic"}, False),
        ({"assistant_model": None, "prompt_lookup_num_tokens": 2}, True),
        ({"lossy_config": {"window": 3, "tree": {"depth": 2}}}, True),
        ({"lossy_config": {"window": 3, "tree": {"depth": 3}}, "num_assistant_tokens": 2}, False),
        ({"lossy_mode": ["fly", "topk"], "lossy_config": {"fly": {"window": 3}}, "num_assistant_tokens": 2}, True),
    ],
    ids=str,
)
def test_a_user_hears_that_drafts_are_too_short(longest, warns: bool, recwarn):
    warn_once.cache_clear()
    target = tiny()
    settings = {"assistant_model": noisy_copy(target, 0.1), "lossy_mode": "fly", "lossy_config": {"window": 3}}
    target.generate(input_ids=prompt(), do_sample=False, max_new_tokens=4, **settings | longest)
    said = [str(one.message) for one in recwarn if "'fly' changes nothing with drafts of 2 tokens" in str(one.message)]
    assert len(said) == warns


@pytest.mark.parametrize(("gamma", "warns"), [(2, True), (3, False)])
def test_a_user_of_stock_s_loop_hears_it_too(gamma: int, warns: bool, recwarn):
    warn_once.cache_clear()
    target = tiny()
    draft = noisy_copy(target, 0.1)
    settings = {"assistant_model": draft, "num_assistant_tokens": gamma}
    with LossyVerification("fly", target, window=3, **settings) as hook:
        target.generate(prompt(), do_sample=False, max_new_tokens=4, logits_processor=[hook], **settings)
    assert any("'fly' changes nothing" in str(one.message) for one in recwarn) == warns
