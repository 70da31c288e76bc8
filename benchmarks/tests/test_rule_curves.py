"""Each rule's order against the rule itself, and what rules pay against a count by hand."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
import torch

from benchmarks import rule_curves
from benchmarks.rule_curves import Curves, features, scores
from benchmarks.tests.running import run
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
    monkeypatch.setattr(rule_curves, "LOCAL", np.array([0.1, 0.5, 2.0]))
    prompts = np.repeat([3, 4], 6)
    kept = rule_curves.spending(np.full(12, np.exp(-1 + 1e-9)), prompts, np.full(12, 2.0))
    few = [0.0, 0.8, 1.0]  # of five places, those with 10, 2 and 1 tokens left
    for text in (kept[:6], kept[6:]):
        assert text[:, 0].tolist() == [0.0] * 6
        assert text[:, 2].tolist() == [1, 1, 1, 1, 0, 0]
        assert text[:, 1] == pytest.approx([0.8, 0.8, 0.8, 0.8, 0.8, 0.0])  # 0.8 of five pairs are 8
    assert kept[0].tolist() == few


def test_a_token_of_a_new_text_is_kept_as_often_as_by_the_rule(laws):
    p, _, x = laws
    local = float(rule_curves.LOCAL[34])
    keep = torch.zeros(len(x))
    for place in range(5):
        tokens = p.argmax(-1)[:, None].repeat(1, 5)
        tokens[:, place] = x
        v = Verification(tokens, p.log()[:, None].expand(-1, 6, -1))
        keep += REGISTRY["regret"](local_regret=local).keep(v)[:, place] / 5
    ratio = (p.gather(-1, x[:, None])[:, 0] / p.amax(-1)).double().numpy()
    share = rule_curves.spending(ratio, np.arange(len(ratio)), np.ones(len(ratio)))[:, 34]
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
        kept = rule_curves.dropped(head, states[differ], q[differ], q[differ].argmax(-1)).float().mean(0)
    assert len(kept) == len(rule_curves.RATES)
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
    order = dict.fromkeys(rule_curves.COMPOSED, np.array([0.9, 0.1, 0.3, 0.2]))
    found = rule_curves.composed(order, {"no digits": digits})
    assert set(found) == {*(f"{name}; no digits" for name in order), "no digits"}
    for own in found.values():
        assert min(own[~digits]) > max(own[digits])
    assert np.argsort(-found["fsd; no digits"]).tolist() == [3, 1, 0, 2]


def rows_of(seed: int, problems: int, knows: float) -> list[dict]:
    """Return rows whose first rule knows the labels with a given strength, and whose second knows nothing."""
    rng = np.random.default_rng(seed)
    rows = []
    for problem in range(problems):
        for _ in range(4):
            important = bool(rng.random() < 0.3)
            order = {"knows": rng.normal() - knows * important, "guesses": rng.normal(), rule_curves.RATIO: 0.5}
            order |= {name: rng.normal() - important for name in rule_curves.TRAINED}
            rows.append({
                "prompt": problem, "solved": problem % 2 == 0, "weight": float(rng.integers(1, 3)),
                "important": important, "order": order, "dropmatch": [0, 1, int(not important)],
            })  # fmt: skip
    return rows


def written(path, rows):
    with gzip.open(path, "wt", encoding="utf-8") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)
    return path


def test_what_a_rule_pays_is_counted(tmp_path):
    rows = rows_of(0, 50, 1.0)
    curves = Curves.read(written(tmp_path / "rows.jsonl.gz", rows))
    total = sum(row["weight"] for row in rows)
    first = sorted(rows, key=lambda row: -row["order"]["knows"])
    for count in (40, 100, 160):
        kept = first[:count]
        share = sum(row["weight"] for row in kept) / total
        paid = sum(row["weight"] * row["important"] for row in kept) / sum(row["weight"] for row in kept)
        assert curves.paid("knows", share)[0] == pytest.approx(paid)
    matter = sum(row["weight"] * row["important"] for row in rows) / total
    assert curves.blind[0] == pytest.approx(matter)
    # DropMatch keeps nothing, what is unimportant, or everything: half way to the unimportant ones, none matters.
    assert curves.paid("dropmatch", (1 - matter) / 2)[0] == pytest.approx(0.0)
    assert curves.paid("dropmatch", 1 - matter / 2)[0] == pytest.approx(matter / 2 / (1 - matter / 2))
    assert curves.where(curves.examples.solved).blind.shape == curves.blind.shape


def test_what_a_rule_never_keeps_stays_together(tmp_path):
    """A knob keeps ties at once, also those at minus infinity: between them and all, their mean counts."""
    rows = rows_of(3, 40, 1.0)
    for row in rows[::2]:
        row["order"]["knows"] = float("-inf")
    kept, important = Curves.read(written(tmp_path / "rows.jsonl.gz", rows)).curves["knows"]
    total = sum(row["weight"] for row in rows)
    assert kept.shape[1] == len(rows) // 2 + 1
    assert kept[0, -2] == pytest.approx(sum(row["weight"] for row in rows[1::2]) / total)
    assert important[0, -2] == pytest.approx(sum(row["weight"] * row["important"] for row in rows[1::2]) / total)


def test_fly_keeps_what_a_full_window_follows(tmp_path):
    rows = rows_of(4, 20, 1.0)
    for i, row in enumerate(rows):
        row["followed"], row["order"][rule_curves.ENTROPY] = i % 6, [0.9, 0.1][i % 5 == 0]
    kept = Curves.read(written(tmp_path / "rows.jsonl.gz", rows)).decisions[rule_curves.WINDOW]
    full, unsure = (np.array([row["followed"] == 5 for row in rows]), np.array([i % 5 > 0 for i in range(len(rows))]))
    assert np.array_equal(kept[:, rule_curves.UNSURE <= 0.1].all(1), full)
    assert np.array_equal(kept[:, rule_curves.UNSURE <= 0.85].any(1), full)
    assert np.array_equal(kept[:, np.searchsorted(-rule_curves.UNSURE, -0.5)] > 0, full & unsure)


def test_what_is_known_is_shown_and_what_is_guessed_is_not(tmp_path):
    """With 2,000 mismatches a rule pays 0.3 ± 0.02 by chance, and one that knows the labels far less."""
    path = written(tmp_path / "rows.jsonl.gz", rows_of(1, 500, 1.0))
    lines = run(rule_curves.app, "show", path, "--plot", tmp_path / "plot.png").output.splitlines()
    (knows,), (guesses,) = ([line for line in lines if line.startswith(f"| {name}")] for name in ("knows", "guesses"))
    assert knows.count("**") == 6
    assert lines[-1].startswith("knows: the judge's AUC +0.0")
    assert "**" not in guesses
    assert (tmp_path / "plot.png").stat().st_size > 10_000


def test_rules_that_guess_are_seldom_shown(tmp_path):
    """Of 40 data sets without knowledge, at most 3 in 20 comparisons may be called shown (99 % of the binomial)."""
    called = 0
    for seed in range(40):
        curves = Curves.read(written(tmp_path / "rows.jsonl.gz", rows_of(seed, 60, 0.0)))
        gap = curves.paid("guesses", 0.5) - curves.blind
        called += rule_curves._p_of(gap) < 0.05
    assert called <= 6


def test_the_rule_that_is_chosen_is_judged_on_other_problems(tmp_path):
    """The one that knows is chosen; how good it is, is counted on the second half, beside the judge, as in `paid`."""
    path = written(tmp_path / "rows.jsonl.gz", rows_of(1, 200, 2.0))
    other = written(tmp_path / "other.jsonl.gz", rows_of(2, 100, 0.0))
    lines = run(rule_curves.app, "choose", path, other).output.splitlines()
    assert lines[0] == "chosen on 100 problems: knows"
    curves = Curves.read(path)
    half = curves.where(curves.examples.prompts % 2 == 1)
    for line, share in zip(lines[4:7], rule_curves.SHARES, strict=True):
        paid = 100 * half.paid("knows", share)[0]
        assert line.startswith(f"| rows | 100 | {share} | {paid:.1f} | {paid - 100 * half.blind[0]:+.1f} (")
        assert f"| {paid - 100 * half.paid('judge', share)[0]:+.1f} (" in line
    assert [line.split(" | ")[:2] for line in lines[7:]] == [["| other", "100"]] * 3
