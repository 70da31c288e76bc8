"""Mismatches by their place in the target's distribution."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch
from datasets import Dataset
from torch import nn

from benchmarks import closeness, mined_labels
from benchmarks.tests.running import run
from hf_lossy_assist.training.examples import Examples


def test_quantities_are_those_of_the_distribution():
    p = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]], dtype=torch.float64)
    found = closeness.closeness(p.log() + 3, torch.tensor([1, 2]))
    expected = {
        "max z - z(x)": (p[:, [0, 2]].diagonal() / torch.tensor([0.3, 0.8])).log(),
        "-log p(x)": -torch.tensor([0.3, 0.8]).log(),
        "-log max p": -torch.tensor([0.5, 0.8]).log(),
        "entropy of p": -(p * p.log()).sum(-1),
        "rank of x": torch.tensor([1, 0]),
        "margin": (p[:, [0, 2]].diagonal() / torch.tensor([0.3, 0.1])).log(),
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
    examples = Examples({}, np.array(tokens["important"]), np.array(tokens["prompt_id"]))
    monkeypatch.setattr(closeness, "read_judged", lambda folder, columns: SimpleNamespace(examples=examples))
    target = SimpleNamespace(target=SimpleNamespace(get_output_embeddings=lambda: head))
    monkeypatch.setattr(closeness.ModelOptions, "load", lambda self: target)
    lines = run(closeness.app, "--data", tmp_path, "--edges", "2,5").output.splitlines()
    cells = {line.strip()[:12].strip(): line.split() for line in lines if line.strip()}
    # The important token is 4 nats below the best one, the others 1, 0.5 and 6: two pairs of three are in order.
    assert cells["max z - z(x)"][4] == "0.667"
    assert cells["0 to 2"][3:] == ["2", "0.0"]
    assert cells["2 to 5"][3:] == ["1", "100.0"]
    assert cells["5 to inf"][3:] == ["1", "0.0"]


def planted(seed: int, by: str) -> tuple[Examples, np.ndarray]:
    """Return examples whose labels are the sign of the first state or of the first quantity."""
    rng = np.random.default_rng(seed)
    states, quantities = rng.normal(size=(400, 4)).astype(np.float32), rng.normal(size=(400, 2))
    labels = {"state": states, "quantities": quantities}[by][:, 0] > 0
    prompts = np.repeat(np.arange(40), 10)
    return Examples({"target_previous": states}, labels, prompts, solved=prompts % 2 == 0), quantities


def test_regressions_find_what_tells_the_labels():
    """By chance, 400 examples give an AUC of 0.42 to 0.58."""
    for by, found in (("state", {"target_previous"}), ("quantities", {"quantities"})):
        aucs = {name: float(auc) for name, auc, *_ in closeness.beside(*planted(0, by))}
        assert len(aucs) == 6
        for name, auc in aucs.items():
            known = found & {*name.removesuffix(", solved").split(" and ")}
            assert auc > 0.95 if known else auc < 0.65, name


def test_labels_that_a_head_does_not_see_teach_it_nothing():
    """Where unsolved problems' labels are the opposite, a head of the solved ones is right on these."""
    examples, _ = planted(0, "state")
    mixed = Examples(examples.states, examples.labels ^ ~examples.solved, examples.prompts, solved=examples.solved)
    aucs = {name: float(auc) for name, auc, *_ in closeness.fewer(mixed)}
    assert aucs["a head of prompts that the target solves, solved"] > 0.95
    assert aucs["a head of prompts that the target solves"] < 0.6
    assert aucs["a head of 16 labels a prompt, solved"] < 0.9  # a prompt has 10
    aucs = {name: float(auc) for name, auc, *_ in closeness.fewer(examples)}
    assert all(aucs[f"a head of {n} labels a prompt"] > 0.9 for n in (4, 8, 16))


def test_a_head_of_other_problems_is_worth_what_it_learned():
    examples, _ = planted(0, "state")
    other, _ = planted(1, "state")
    misled = Examples(other.states, ~other.labels, other.prompts)
    aucs = [{name: float(auc) for name, auc, *_ in closeness.across(examples, one)} for one in (other, misled)]
    assert aucs[0]["a head of the other data, solved"] > 0.95
    assert aucs[1]["a head of the other data"] < 0.05
    # With both, labels contradict each other.
    assert aucs[0]["heads of both"] > 0.95 > aucs[1]["heads of both"] + 0.1
    assert aucs[0]["heads of both, less own"] > -0.02 > aucs[1]["heads of both, less own"] + 0.1
