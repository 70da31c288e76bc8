"""Mismatches by their place in the target's distribution."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from datasets import Dataset
from torch import nn

from benchmarks import closeness, mined_labels
from tests.benchmarks.running import run


def test_quantities_are_those_of_the_distribution():
    p = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]], dtype=torch.float64)
    found = closeness.closeness(p.log() + 3, torch.tensor([1, 2]))
    expected = {
        "max z - z(x)": (p[:, [0, 2]].diagonal() / torch.tensor([0.3, 0.8])).log(),
        "-log p(x)": -torch.tensor([0.3, 0.8]).log(),
        "-log max p": -torch.tensor([0.5, 0.8]).log(),
        "entropy of p": -(p * p.log()).sum(-1),
    }
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        torch.testing.assert_close(found[name].double(), values.double(), msg=name)


def test_the_study_counts_what_was_mined(monkeypatch, tmp_path):
    tokens = {
        # The head is the identity, so these are the logits.
        "target_previous": [[0.0, 1.0, -2.0], [4.0, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, 0.0, 6.0]],
        "draft_token": [0, 1, 2, 0],
        "important": [False, True, False, False],
        "prompt_id": [0, 0, 1, 2],
    }
    manifest = {"kind": "judge", "settings": {"dtype": {"target": "float32"}}}
    mined = SimpleNamespace(manifest=manifest, tokens=Dataset.from_dict(tokens))
    head = nn.Linear(3, 3, bias=False)
    nn.init.eye_(head.weight)
    monkeypatch.setattr(mined_labels, "load_mined", lambda folder: mined)
    target = SimpleNamespace(target=SimpleNamespace(get_output_embeddings=lambda: head))
    monkeypatch.setattr(closeness.ModelOptions, "load", lambda self: target)
    lines = run(closeness.app, "--data", tmp_path, "--edges", "2,5").output.splitlines()
    cells = {line.strip()[:12].strip(): line.split() for line in lines if line.strip()}
    # The important token is 4 nats below the best one, the others 1, 0.5 and 6: two pairs of three are in order.
    assert cells["max z - z(x)"][4] == "0.667"
    assert cells["0 to 2"][3:] == ["2", "0.0"]
    assert cells["2 to 5"][3:] == ["1", "100.0"]
    assert cells["5 to inf"][3:] == ["1", "0.0"]
