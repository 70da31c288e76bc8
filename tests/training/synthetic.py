"""Labelled states whose best classifier is known, in memory and in the layout that mining writes."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hf_lossy_assist.heads import ModelIdentity
from hf_lossy_assist.training.examples import Examples, Origin, Ratios

TARGET_SIZE, DRAFT_SIZE = 6, 4
TARGET = ModelIdentity("org/large", "abc", "LlamaForCausalLM", TARGET_SIZE, 100, (1.0, 2.0))
DRAFT = ModelIdentity("org/small", None, "LlamaForCausalLM", DRAFT_SIZE, 100)
ORIGIN = Origin(TARGET, DRAFT, "arithmetic")
KINDS = ("prompt", "draft", "target", "interleaved")
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
    return Ratios(states, q * np.exp(-0.4 * signal), q, np.repeat(np.arange(prompts), tokens), np.resize(KINDS, n))


def write_judged(folder: Path, examples: Examples, shards: int = 2, **manifest: Any) -> Path:
    """Write what ``lossy-assist mine`` writes."""
    n = len(examples)
    tokens = {
        "prompt_id": examples.prompts,
        "index": np.arange(n),
        "target_token": np.full(n, 5),
        "draft_token": np.full(n, 6),
        "important": examples.labels,
        "weight": examples.weights,
        **{name: list(state) for name, state in examples.states.items()},
    }
    return _write(folder, "judge", tokens, examples.prompts, shards, manifest)


def write_ratios(folder: Path, data: Ratios, shards: int = 2, **manifest: Any) -> Path:
    n = len(data.p)
    tokens = {
        "prompt_id": data.prompts,
        "kind": data.kinds,
        "index": np.arange(n),
        "token": np.full(n, 5),
        "p": data.p.astype(np.float32),
        "q": data.q.astype(np.float32),
        "previous": list(data.states["previous"]),
        "token_state": list(data.states["token"]),
    }
    return _write(folder, "ratio", tokens, data.prompts, shards, manifest)


def _write(folder, kind, tokens, prompts, shards, manifest) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    ids = np.unique(prompts)
    table = {
        "prompt_id": ids,
        "status": ["mined"] * len(ids),
        "prompt": [f"{folder.name}, {i}" for i in ids],
    }
    for name, columns, owner in (("prompts", table, ids), ("tokens", tokens, prompts)):
        for shard in range(shards):
            chosen = np.isin(owner, ids[shard::shards])
            rows = {key: [value[i] for i in np.flatnonzero(chosen)] for key, value in columns.items()}
            numbers = f"{shard:03d}-{0:07d}-{len(ids[shard::shards]) - 1:07d}"
            pq.write_table(pa.table(rows), folder / f"{name}-{numbers}.parquet")
    text = {"kind": kind, "task": "arithmetic", "target": asdict(TARGET), "draft": asdict(DRAFT)}
    text |= {"settings": {"split": "train"}, "runs": [], **manifest}
    (folder / "manifest.json").write_text(json.dumps(text))
    return folder
