"""How modes are read."""

from __future__ import annotations

from hf_lossy_assist.evaluation.modes import parse_modes


def test_modes_to_compare():
    plain, stock, several, auto = parse_modes("plain, stock@3,topk@7:k=3:tolerance=0.5,lossless@auto", 5)
    assert (plain.label, stock.label, stock.gamma) == ("plain", "stock@3", 3)
    assert (several.gamma, several.settings) == (7, {"k": 3, "tolerance": 0.5})
    assert auto.gamma == "auto"
    assert parse_modes("stock", "auto")[0].gamma == 5
    assert {mode.temperature for mode in parse_modes("plain,stock,topk", 5, 0.7)} == {0.7}


def test_baselines():
    draft, everything = parse_modes("draft,everything@7", 5, 0.5)
    assert (draft.answers, draft.gamma, draft.temperature) == ("draft", None, 0.5)
    assert (everything.label, everything.rule, everything.gamma) == ("everything@7", "thresholds", 7)
