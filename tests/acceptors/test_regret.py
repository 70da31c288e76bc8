"""The budget over the whole text: what a text spends, in every round, in batches whose rows leave, and in lists."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from hf_lossy_assist import LossyVerification
from hf_lossy_assist.acceptors import AnyOf, Regret, TopK, decide
from hf_lossy_assist.core.messages import Verification
from tests.tiny_models import noisy_copy, padded, prompt, tiny

GREEDY = {"do_sample": False, "max_new_tokens": 60, "eos_token_id": None, "num_assistant_tokens": 5}
BOLD = {"local_regret": 100.0, "mismatches": 100}


def published(regrets: np.ndarray, spent: float, total: float, local: float, mismatches: int) -> int:
    """Return how many tokens of a draft are kept, token by token as in the paper; 0 is a match."""
    kept = bought = 0
    for i, regret in enumerate(regrets):
        if regret > 0:
            bought, spent = bought + 1, spent + regret
            if spent > total or regret / (len(regrets) - i) > local or bought > mismatches:
                break
        kept += 1
    return kept


@pytest.mark.parametrize("total", [0.0, 0.5, 2.0, math.inf])
def test_a_round_keeps_what_the_published_loop_keeps(total: float):
    rng = np.random.default_rng(int(min(total, 9) * 10))
    for _ in range(300):
        n, spent = int(rng.integers(1, 8)), float(rng.choice([0.0, 0.4, 3.0]))
        local, mismatches = float(rng.choice([0.05, 0.3, 2.0])), int(rng.integers(0, 4))
        logits = torch.tensor(rng.normal(size=(1, n + 1, 5)), dtype=torch.float32)
        tokens = torch.tensor(rng.integers(0, 2, (1, n))) * logits[:, :-1].argsort(descending=True)[..., 1]
        tokens = torch.where(tokens > 0, tokens, logits[:, :-1].argmax(-1))
        v = Verification(tokens, logits, charged=[spent])
        decision = decide(Regret(total, local, mismatches), v)
        regrets = (logits[:, :-1].amax(-1) - logits[:, :-1].gather(-1, tokens[..., None])[..., 0])[0].numpy()
        if total == 0:
            assert decision.n_accepted == (regrets == 0).cumprod().sum()
        else:
            assert decision.n_accepted == published(regrets, spent, total, local, mismatches)
        assert decision.charge.item() == pytest.approx(regrets[: decision.n_accepted].sum(), abs=1e-6)


def regret_of(target, row: torch.Tensor, prompt_length: int) -> float:
    """Return what a text lacks of the target's best tokens, by one forward over it."""
    with torch.no_grad():
        logits = target(row[None]).logits[0, prompt_length - 1 : -1].float()
    return (logits.amax(-1) - logits.gather(-1, row[prompt_length:, None])[:, 0]).sum().item()


@pytest.mark.parametrize("total", [0.5, 3.0, 20.0])
def test_a_text_spends_its_budget_and_no_more(total: float):
    target, ids = tiny(), prompt()
    kwargs = {"input_ids": ids, "assistant_model": noisy_copy(target, 0.1), "lossy_mode": "regret", **GREEDY}
    out = target.generate(**kwargs, lossy_config={"total_regret": total, **BOLD}, return_dict_in_generate=True)
    spent = regret_of(target, out.sequences[0], ids.shape[1])
    assert spent <= total + 1e-3
    free = target.generate(**kwargs, lossy_config={"total_regret": math.inf, **BOLD})
    assert regret_of(target, free[0], ids.shape[1]) > 20, "without a budget, the text would have spent more"
    assert out.lossy_stats.accepted_lossy > 0
    hook = LossyVerification("regret", target, assistant_model=kwargs["assistant_model"], total_regret=total, **BOLD)
    with hook:
        options = {key: value for key, value in GREEDY.items() if key != "num_assistant_tokens"}
        theirs = target.generate(ids, assistant_model=kwargs["assistant_model"], logits_processor=[hook], **options)
    assert theirs.tolist() == out.sequences.tolist(), "stock's loop spends alike"


def test_rows_have_budgets_of_their_own_also_when_others_leave():
    target = tiny()
    draft = noisy_copy(target, 0.1)
    inputs, lengths = padded((4, 9, 6)), (4, 9, 6)
    mode = {"lossy_mode": "regret", "lossy_config": {"total_regret": 6.0, **BOLD}, "assistant_model": draft}
    alone = [
        target.generate(inputs["input_ids"][i : i + 1, -n:], **mode, **GREEDY)[0, n:].tolist()
        for i, n in enumerate(lengths)
    ]
    # A token that the first row has soon and the others have late or never ends it before them.
    ends = next(token for token in alone[0][3:12] if token not in alone[1][:30] and token not in alone[2][:30])
    together = target.generate(**inputs, **mode, **GREEDY | {"eos_token_id": ends, "pad_token_id": 0})
    width = max(lengths)
    for row, own in zip(together[:, width:].tolist(), alone, strict=True):
        stop = own.index(ends) + 1 if ends in own else len(own)
        assert row[:stop] == own[:stop]
    assert together[0, -1] == 0, "the first row has left"


def test_what_other_rules_keep_is_charged_too():
    logits = torch.tensor([[[0.0, 1.0, 3.0]] * 5])
    v = Verification(torch.ones(1, 4, dtype=torch.long), logits, charged=[1.0])
    either = AnyOf((TopK(k=2), Regret(total_regret=4.0, **BOLD)))
    assert Regret(total_regret=4.0, **BOLD).keep(v).tolist() == [[True, False, False, False]]
    assert decide(either, v).n_accepted.item() == 4
    assert decide(either, v).charge.item() == 8.0
