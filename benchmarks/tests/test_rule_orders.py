"""Each rule's order against the rule itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks import rule_orders
from benchmarks.rule_orders import features, scores
from hf_lossy_assist.acceptors import REGISTRY
from hf_lossy_assist.core.messages import Verification

WIDTH = 12


@pytest.fixture(scope="module")
def laws():
    """Return p, q and the draft's likeliest tokens, which are not the target's, at 2,000 positions."""
    draw = torch.Generator().manual_seed(0)
    p, q = (torch.randn(4000, WIDTH, generator=draw).mul(2).softmax(-1) for _ in range(2))
    q = 0.6 * p + 0.4 * q
    differ = p.argmax(-1) != q.argmax(-1)
    p, q = p[differ], q[differ]
    return p, q, q.argmax(-1)


@pytest.mark.parametrize(
    ("line", "rule", "settings", "least"),
    [
        ("min_p, near_top, lenience, regret", "min_p", lambda s: {"tau": s}, (0.2, 0.5, 0.8)),
        ("min_p, near_top, lenience, regret", "near_top", lambda s: {"alpha": 1 - s}, (0.2, 0.5, 0.8)),
        ("min_p, near_top, lenience, regret", "lenience", lambda s: {"factor": s}, (0.2, 0.5, 0.8)),
        ("typical", "typical", lambda s: {"epsilon": 0.09 * s, "delta": 0.3 * s}, (0.5, 1.0, 2.0)),
        ("topk", "topk", lambda s: {"k": 1 - s}, (-1, -2, -3)),
        ("relaxed", "relaxed", lambda s: {"top_n": WIDTH, "delta": -s}, (-0.02, -0.1, -0.3)),
        ("margin", "margin", lambda s: {"gap": -s}, (-0.2, -0.7, -1.5)),
        ("fsd", "fsd", lambda s: {"threshold": -s}, (-0.02, -0.05, -0.08)),
        ("ensemble", "ensemble", lambda s: {"weight": s}, (0.3, 0.6, 0.9)),
        ("fly, its entropy alone", "fly", lambda s: {"theta": s, "window": 1}, (0.4, 0.6, 0.8)),
    ],
)
def test_an_order_is_that_of_the_rules_knob(laws, line, rule, settings, least):
    p, q, x = laws
    logits = p.log()[:, None].expand(-1, 2, -1)
    order = scores(p, q, x)[line]
    shares = set()
    for level in least:
        kept = REGISTRY[rule](**settings(level)).keep(Verification(x[:, None], logits, draft_logits=q.log()[:, None]))[
            :, 0
        ]
        # Where a score is the level itself, rounding decides.
        sure = (order - level).abs() > 1e-5
        assert torch.equal(kept[sure], order[sure] >= level)
        shares.add(round(kept.float().mean().item(), 3))
    assert len(shares) == 3
    assert shares != {0.0}


def test_regret_of_one_token_has_the_order_of_the_ratio(laws):
    p, q, x = laws
    order = scores(p, q, x)["min_p, near_top, lenience, regret"]
    v = Verification(x[:, None], p.log()[:, None].expand(-1, 2, -1), draft_logits=q.log()[:, None])
    for nats in (0.2, 0.7, 1.5):
        kept = REGISTRY["regret"](local_regret=nats).keep(v)[:, 0]
        sure = (order.log() + nats).abs() > 1e-5
        assert torch.equal(kept[sure], (order.log() >= -nats)[sure])
        assert 0 < kept.float().mean() < 1


def test_a_budget_is_spent_along_each_text(monkeypatch):
    """A text's tokens cost 1 nat each; with a budget of 8, and labels that stand for two, four labels spend it all."""
    monkeypatch.setattr(rule_orders, "LOCAL", np.array([0.1, 0.5, 2.0]))
    prompts = np.repeat([3, 4], 6)
    kept = rule_orders.spending(np.full(12, np.exp(-1 + 1e-9)), prompts, np.full(12, 2.0))
    few = [0.0, 0.8, 1.0]  # of five places, those with 10, 2 and 1 tokens left
    for text in (kept[:6], kept[6:]):
        assert text[:, 0].tolist() == [0.0] * 6
        assert text[:, 2].tolist() == [1, 1, 1, 1, 0, 0]
        assert text[:, 1] == pytest.approx([0.8, 0.8, 0.8, 0.8, 0.8, 0.0])  # 0.8 of five pairs are 8
    assert kept[0].tolist() == few


def test_a_token_of_a_new_text_is_kept_as_often_as_by_the_rule(laws):
    p, _, x = laws
    local = float(rule_orders.LOCAL[34])
    keep = torch.zeros(len(x))
    for place in range(5):
        tokens = p.argmax(-1)[:, None].repeat(1, 5)
        tokens[:, place] = x
        v = Verification(tokens, p.log()[:, None].expand(-1, 6, -1))
        keep += REGISTRY["regret"](local_regret=local).keep(v)[:, place] / 5
    ratio = (p.gather(-1, x[:, None])[:, 0] / p.amax(-1)).double().numpy()
    share = rule_orders.spending(ratio, np.arange(len(ratio)), np.ones(len(ratio)))[:, 34]
    assert (np.abs(share - keep.numpy()) < 1e-5).mean() > 0.999  # where a regret is at the bound, rounding decides
    assert len({*keep.tolist()}) == 6


def test_dropped_heads_keep_more_as_they_err_more():
    """Without dropout, DropMatch keeps the target's own tokens; with much of it, nearly all."""
    draw = torch.Generator().manual_seed(0)
    head, states = torch.nn.Linear(24, WIDTH, bias=False), torch.randn(200, 24, generator=draw)
    torch.nn.init.normal_(head.weight, generator=draw)
    with torch.inference_mode():
        p = head(states)
        q = (p + torch.randn(200, WIDTH, generator=draw) * 3).softmax(-1)
        differ = p.argmax(-1) != q.argmax(-1)
        kept = rule_orders.dropped(head, states[differ], q[differ], q[differ].argmax(-1)).float().mean(0)
    assert len(kept) == len(rule_orders.RATES)
    assert kept[0] < 0.1
    assert kept[-1] > kept[0] + 0.2


def test_features_are_those_of_the_laws_and_words():
    p, q = torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[0.2, 0.7, 0.1]])
    (found,) = features(p, q, torch.tensor([1]), torch.tensor([0]), {0: " 12", 1: " +"}).tolist()
    middle = (p + q) / 2
    js = 0.5 * (p * (p / middle).log() + q * (q / middle).log()).sum().item()
    kinds = [0, 1, 0, 1, 0, 0, 0, 1, 0, 2, 1, 0, 0, 0, 0, 0, 0, 1, 0, 3]  # of " +" and " 12"
    expected = [
        js, (p * (p / q).log()).sum().item(), (q * (q / p).log()).sum().item(), np.log(0.3 / 0.5), np.log(0.3),
        np.log(0.7), np.log(0.5), np.log(0.2), -(p * p.log()).sum().item(), -(q * q.log()).sum().item(), 1, *kinds, 0,
        -1,
    ]  # fmt: skip
    assert found == pytest.approx(expected, abs=1e-5)


def test_what_another_rule_refuses_comes_last():
    digits = np.array([True, False, True, False])
    order = dict.fromkeys(rule_orders.COMPOSED, np.array([0.9, 0.1, 0.3, 0.2]))
    found = rule_orders.composed(order, {"no digits": digits})
    assert set(found) == {*(f"{name}; no digits" for name in order), "no digits"}
    for own in found.values():
        assert min(own[~digits]) > max(own[digits])
    assert np.argsort(-found["fsd; no digits"]).tolist() == [3, 1, 0, 2]
