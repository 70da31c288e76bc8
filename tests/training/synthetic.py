"""Labelled states whose best classifier is known, in memory and in the layout that mining writes."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from hf_lossy_assist.heads import ModelIdentity
from hf_lossy_assist.training.examples import Examples, Origin, Ratios
from hf_lossy_assist.training.labelling import LabelFolder, PromptLabels

TARGET_SIZE, DRAFT_SIZE = 6, 4
TARGET = ModelIdentity("org/large", "abc", "LlamaForCausalLM", TARGET_SIZE, 100, (1.0, 2.0))
DRAFT = ModelIdentity("org/small", None, "LlamaForCausalLM", DRAFT_SIZE, 100)
ORIGIN = Origin(TARGET, DRAFT, "arithmetic")
# How much each state knows of the label.
SIGNAL = {"target_previous": 0.5, "target_draft": 2.0, "draft_previous": 0.3, "draft_draft": 1.0}


def sizes(column: str) -> int:
    return TARGET_SIZE if column.startswith("target") else DRAFT_SIZE


def judged(prompts: int = 120, tokens: int = 5, seed: int = 0, share: float = 0.3):
    """Return examples in which the first unit of each state leans towards the label; units have odd scales."""
    rng = np.random.default_rng(seed)
    n = prompts * tokens
    labels = rng.random(n) < share
    states = {}
    for column, signal in SIGNAL.items():
        state = rng.normal(size=(n, sizes(column)))
        state[:, 0] += signal * labels
        scale = 10.0 ** np.arange(-2, sizes(column) - 2)
        states[column] = (state * scale + 3 * scale).astype(np.float32)
    return Examples(states, labels, np.repeat(np.arange(prompts), tokens) * 7)


def rows_of(examples: Examples, at: np.ndarray) -> Examples:
    """Return some of the examples, by a mask or by indices."""
    rows = {name: getattr(examples, name)[at] for name in ("labels", "prompts", "weights")}
    return replace(examples, states={name: state[at] for name, state in examples.states.items()}, **rows)


def ratios(prompts: int = 120, tokens: int = 5, seed: int = 0) -> Ratios:
    """Return tokens whose second unit is log q/p and noise, more of it in ``previous`` than in ``token``."""
    rng = np.random.default_rng(seed)
    n = prompts * tokens
    signal = rng.normal(size=n)
    states = {}
    for position, noise in (("previous", 1.5), ("token", 0.3)):
        state = rng.normal(size=(n, DRAFT_SIZE)) * 5 + 20
        state[:, 1] = 100 * (signal + noise * rng.normal(size=n))
        states[position] = state.astype(np.float32)
    q = rng.uniform(0.05, 0.3, size=n)
    return Ratios(states, q * np.exp(-0.4 * signal), q, np.repeat(np.arange(prompts), tokens))


def write_judged(folder: Path, examples: Examples, **manifest: Any) -> Path:
    """Write what ``lossy-assist mine`` writes."""
    n = len(examples)
    tokens = {
        "index": np.arange(n),
        "target_token": np.full(n, 5),
        "draft_token": np.full(n, 6),
        "important": examples.labels,
        "weight": examples.weights,
        **examples.states,
    }
    return _write(folder, "judge", tokens, examples.prompts, manifest)


def write_ratios(folder: Path, data: Ratios, **manifest: Any) -> Path:
    n = len(data.p)
    tokens = {
        "kind": np.zeros(n, dtype=np.int8),
        "index": np.arange(n),
        "token": np.full(n, 5),
        "p": data.p.astype(np.float32),
        "q": data.q.astype(np.float32),
        "previous": data.states["previous"],
        "token_state": data.states["token"],
    }
    return _write(folder, "ratio", tokens, data.prompts, manifest)


def _write(folder, kind, tokens, prompts, manifest) -> Path:
    plan = {"kind": kind, "task": "arithmetic", "target": asdict(TARGET), "draft": asdict(DRAFT)}
    store = LabelFolder(folder, plan | {"settings": {"split": "train"}, **manifest})
    for prompt in np.unique(prompts).tolist():
        row = PromptLabels(prompt, "mined", prompt=f"{folder.name}, {prompt}")
        store.add(row, **{name: np.asarray(values)[prompts == prompt] for name, values in tokens.items()})
    return folder


def by_hand(examples, columns, strength: float, train=slice(None)):
    """Standardise, fit, score: by formulas, with no code shared."""
    state = np.concatenate([examples.states[name] for name in columns], axis=1).astype(np.float64)
    weights = examples.weights
    mean = np.average(state[train], axis=0, weights=weights[train])
    scale = np.sqrt(np.average((state[train] - mean) ** 2, axis=0, weights=weights[train]))
    centred, share = (state - mean) / scale, weights[train] / weights.mean()
    regression = LogisticRegression(C=strength, max_iter=500)
    return regression.fit(centred[train], examples.labels[train], share).predict_proba(centred)[:, 1]
