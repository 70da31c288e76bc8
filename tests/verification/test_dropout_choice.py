"""ρ is chosen by what dropping does to the head at hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers import CompileConfig

import hf_lossy_assist
from hf_lossy_assist import LossyVerification, last_stats
from hf_lossy_assist.acceptors import DroppedHeads
from hf_lossy_assist.sampling import Randomness
from hf_lossy_assist.verification import lm_head_hook as module
from hf_lossy_assist.verification.lm_head_hook import AGREEMENT, DROPOUTS, LMHeadHook, choose_dropout
from tests.agreement import agreement
from tests.models import noisy_copy, prompt, tiny


def head_and_states(scale: float, seed: int, positions: int = 40) -> tuple[nn.Linear, Tensor]:
    """Return a head whose laws are the sharper the larger ``scale`` is."""
    torch.manual_seed(seed)
    head = nn.Linear(64, 50, bias=False)
    with torch.no_grad():
        head.weight.normal_()
        tokens = torch.randint(50, (1, positions))
        states = scale * head.weight[tokens] / 64**0.5 + torch.randn(1, positions, 64)
    return head, states


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scale", [0.3, 2.0, 6.0])
def test_it_is_the_largest_that_leaves_the_surer_half_alone(scale, seed):
    head, states = head_and_states(scale, seed)
    with torch.no_grad():
        chosen = choose_dropout(head, states, 5)
        shares = [agreement(head, states, 5, dropout) for dropout in DROPOUTS]
    if chosen == 0:
        assert shares[0] < AGREEMENT
        return
    at = DROPOUTS.index(chosen)
    assert shares[at] >= AGREEMENT
    assert at == len(DROPOUTS) - 1 or shares[at + 1] < AGREEMENT


def test_a_sure_head_bears_more_than_an_unsure_one():
    sure, unsure = (choose_dropout(*head_and_states(scale, 0), 5) for scale in (20.0, 0.3))
    assert sure == DROPOUTS[-1]
    assert unsure < 0.1


def test_too_short_a_prompt_says_too_little_to_be_bold():
    head, states = head_and_states(20.0, 0, positions=15)
    assert choose_dropout(head, states, 5) == DROPOUTS[0]


def test_it_draws_nothing_of_the_caller_s():
    torch.manual_seed(5)
    expected = torch.rand(3)
    head, states = head_and_states(2.0, 0)
    torch.manual_seed(5)
    first = choose_dropout(head, states, 5)
    assert torch.equal(torch.rand(3), expected)
    assert choose_dropout(head, states, 5) == first


@pytest.fixture
def chosen(monkeypatch):
    """The states that a choice is made of, and ρ, call by call."""
    seen, choose = [], module.choose_dropout

    def noted(head, states, paths):
        dropout = choose(head, states, paths)
        seen.append((states.clone(), dropout))
        return dropout

    monkeypatch.setattr(module, "choose_dropout", noted)
    return seen


def last_states(model, ids, mask=None, n=64):
    with torch.no_grad():
        return model.model(input_ids=ids, attention_mask=mask).last_hidden_state[:, -n:]


@pytest.fixture(scope="module")
def models():
    target = tiny()
    return target, noisy_copy(target, 0.02)


@pytest.mark.parametrize("sample", [False, True])
@pytest.mark.parametrize("length", [20, 90])
def test_the_prompt_s_last_positions_are_looked_at_once(models, chosen, sample, length):
    target, draft = models
    ids = prompt(length)
    options = {"assistant_model": draft, "max_new_tokens": 12, "do_sample": sample}
    calls = []
    counted = target.register_forward_pre_hook(lambda *args: calls.append(1))
    auto = target.generate(input_ids=ids, lossy_mode="dropmatch", lossy_config={"seed": 0}, **options)
    counted.remove()
    ((states, dropout),) = chosen
    torch.testing.assert_close(states, last_states(target, ids), atol=1e-4, rtol=1e-4)
    assert len(calls) == last_stats(target).target_calls, "no forward more than those of the rounds"
    by_hand = {"seed": 0, "dropout": dropout}
    same = target.generate(input_ids=ids, lossy_mode="dropmatch", lossy_config=by_hand, **options)
    assert auto.tolist() == same.tolist()
    assert len(chosen) == 1


def test_rows_are_looked_at_together_without_their_padding(models, chosen):
    target, draft = models
    short, long = prompt(10), prompt(30, 1)
    ids = torch.cat([torch.cat([torch.zeros(1, 20, dtype=torch.long), short], 1), long])
    mask = torch.ones_like(ids)
    mask[0, :20] = 0
    target.generate(
        input_ids=ids, attention_mask=mask, assistant_model=draft, lossy_mode="dropmatch", max_new_tokens=6,
        do_sample=False, pad_token_id=0,
    )  # fmt: skip
    ((states, _),) = chosen
    assert states.shape[:2] == (2, 10)
    torch.testing.assert_close(states[0], last_states(target, short)[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(states[1], last_states(target, long)[0, -10:], atol=1e-4, rtol=1e-4)


def test_stock_s_loop_chooses_the_same(models, chosen):
    target, draft = models
    ids = prompt(30)
    options = {"max_new_tokens": 12, "do_sample": False}
    target.generate(input_ids=ids, assistant_model=draft, lossy_mode="dropmatch", lossy_config={"seed": 0}, **options)
    with hf_lossy_assist.enabled(target), LossyVerification("dropmatch", target, assistant_model=draft, seed=0) as hook:
        target.generate(input_ids=ids, assistant_model=draft, logits_processor=[hook], **options)
    ours, stock = chosen
    torch.testing.assert_close(ours[0], stock[0], atol=1e-4, rtol=1e-4)
    assert ours[1] == stock[1]


def test_a_static_cache_sees_the_same(models, chosen):
    target, draft = models
    ids = prompt(30)
    options = {"assistant_model": draft, "max_new_tokens": 8, "do_sample": False, "lossy_mode": "dropmatch"}
    for cache in (None, "static"):
        target.generate(input_ids=ids, lossy_config={"seed": 0}, cache_implementation=cache, **options)
    grown, static = chosen
    torch.testing.assert_close(grown[0], static[0], atol=1e-4, rtol=1e-4)
    assert grown[1] == static[1]


@pytest.mark.filterwarnings("error:.*no effect")
@pytest.mark.parametrize("gamma", [5, 40], ids=["an eager forward over the prompt", "a compiled one"])
def test_compiled_forwards_see_the_same(models, chosen, gamma):
    target, draft = models
    options = {
        "assistant_model": draft, "max_new_tokens": 8, "do_sample": False, "lossy_mode": "dropmatch",
        "num_assistant_tokens": gamma, "compile_config": CompileConfig(backend="eager"),
    }  # fmt: skip
    eager, compiled = (
        target.generate(prompt(30), lossy_config={"seed": 0, "compile": compile}, **options).tolist()
        for compile in (False, True)
    )
    assert compiled == eager
    grown, static = chosen
    torch.testing.assert_close(grown[0], static[0], atol=1e-4, rtol=1e-4)
    assert grown[1] == static[1]


def test_a_given_dropout_asks_for_no_more_than_the_last_position():
    hook = LMHeadHook(nn.Linear(4, 9), DroppedHeads(2, 0.1), Randomness(0))
    assert hook.room(None, 1, 50) == 1
    hook = LMHeadHook(nn.Linear(4, 9), DroppedHeads(2, "auto"), Randomness(0))
    assert [hook.room(None, rows, 50) for rows in (1, 4, 100)] == [50, 16, 1]
    assert hook.room(torch.tensor([[0, 1, 1], [1, 1, 1]]), 1, 3) == 2
