"""Rows for shards, of which each tells what has to come back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from hf_lossy_assist.store.shards import ShardStore
from hf_lossy_assist.training.judge_labels import judge_schemas
from hf_lossy_assist.training.label_folder import load_mined

SCHEMAS = judge_schemas({"target_draft": 4, "draft_draft": 2})


def write_manifest(folder: Path) -> None:
    """Make a folder one of mined data."""
    manifest = {"kind": "judge", "task": "t", "target": None, "draft": {}, "settings": {}, "runs": []}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def elsewhere(call: Callable[[], Any]) -> Any:
    """Call in another thread, for which locks are held as for another process."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def row(prompt: int, status: str = "mined", **more) -> dict:
    return {"prompt_id": prompt, "status": status, "error": None, "prompt": f"p{prompt}", **more}


def labels(prompt: int, n: int) -> dict:
    return {
        "index": list(range(n)),
        "target_token": [7] * n,
        "draft_token": [8] * n,
        "important": [i % 2 == 0 for i in range(n)],
        "target_draft": np.full((n, 4), prompt, dtype=np.float32),
        "draft_draft": np.full((n, 2), -prompt, dtype=np.float32),
    }


def put(store: ShardStore, prompt: int) -> None:
    """ShardStore a prompt with as many labels as its number modulo 4."""
    store.add(row(prompt, mismatches=prompt % 4), labels(prompt, prompt % 4) if prompt % 4 else {})


def assert_holds(folder: Path, prompts: Iterable[int]) -> None:
    """Check that a folder holds these prompts, each once, with their labels."""
    mined = load_mined(folder)
    assert sorted(mined.prompts["prompt_id"]) == sorted(prompts)
    rows = mined.tokens.with_format("numpy")[:]
    assert sorted(rows["prompt_id"].tolist()) == sorted(p for p in prompts for _ in range(p % 4))
    if len(rows["prompt_id"]):
        assert rows["target_draft"].dtype == np.float32
        assert (rows["target_draft"] == rows["prompt_id"][:, None]).all()
        assert (rows["draft_draft"] == -rows["prompt_id"][:, None]).all()
