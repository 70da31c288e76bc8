"""Some of the trial's cases of every part; the command runs them all."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter

import pytest
import torch

from hf_lossy_assist.acceptors import decide
from hf_lossy_assist.core.messages import Verification
from tests.trial import __main__ as trial
from tests.trial.laws import WIDTH, usual_rules
from tests.trial.parts import PARTS


@pytest.mark.parametrize(
    ("part", "seed", "cases", "expected"),
    [
        ("calls", 0, 30, {"equal to plain": 4, "keeps its promises": 4}),
        ("junk", 7, 100, {"refused by name": 40, "works": 10, "fails as plain does": 5}),
        ("laws", 7, 600, {}),
        ("interruptions", 7, 30, {"nothing left": 27}),
        ("files", 7, 220, {"refused by name": 120, "read": 20}),
        ("sandbox", 7, 4, {}),
        ("kills", 7, 1, {}),
    ],
)
def test_some_cases(part: str, seed: int, cases: int, expected: dict[str, int]):
    outcomes = Counter(check() for _, check in PARTS[part][0](seed, cases))
    assert sum(outcomes.values()) == cases
    assert all(outcomes[outcome] >= least for outcome, least in expected.items()), outcomes


def test_the_command_counts_failures_and_keeps_what_it_knows(tmp_path, monkeypatch, capsys):
    def broken(seed: int, count: int):
        for number in range(count):
            yield f"case {number}", (lambda: "fine") if number else (lambda: 1 / 0)

    monkeypatch.setattr(trial, "PARTS", {"broken": (broken, 3)})
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    kept = tmp_path / "results.json"
    assert trial.main(["--json", str(kept)]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().out
    result = json.loads(kept.read_text())["broken"]
    assert (result["cases"], result["outcomes"]) == (3, {"fine": 2})
    assert [failure["case"] for failure in result["failures"]] == ["case 0"]
    monkeypatch.setattr(trial, "PARTS", {})
    assert trial.main(["--json", str(kept)]) == 1, "a part that is known is not run again"


RULES = usual_rules()


@pytest.mark.parametrize("name", RULES)
def test_logits_that_are_no_numbers(name: str):
    """Greedily NaN is the largest number, as for torch and so for plain generation."""
    nan = torch.full((1, 4, 5), torch.nan)
    v = Verification(
        tokens=torch.tensor([[1, 2, 3]]),
        logits=nan,
        draft_logits=nan[:, 1:],
        hidden=torch.full((1, 4, WIDTH), torch.nan),
        dropped_logits=nan[:, None, 1:].expand(-1, 3, -1, -1),
        centroid_logits=nan[:, 1:],
        draft_hidden=torch.full((1, 3, WIDTH), torch.nan),
    )
    for logits in (nan, torch.full_like(nan, -torch.inf)):
        decision = decide(RULES[name], dataclasses.replace(v, logits=logits))
        assert decision.n_accepted.tolist() == [0]
        assert decision.next_token.tolist() == [0]
