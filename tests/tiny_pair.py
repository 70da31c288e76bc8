"""A pair of untrained models in a folder of the bundled pair's layout, and in the bundled pair's place."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.bundled_pair.recipe import Cycle, ModelRecipe, build_model, build_tokenizer, save_model
from hf_lossy_assist import pairs

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""A chat template in which an answer ends where the model ends it."""

TINY = ModelRecipe(layers=1, hidden=16, heads=2, intermediate=24, cycles=(Cycle(6),), batch=2)


@pytest.fixture(scope="session")
def tiny_pair_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    tokenizer = build_tokenizer(100)
    for seed, role in enumerate(("target", "draft")):
        save_model(build_model(ModelRecipe(**{**vars(TINY), "seed": seed}), tokenizer), tokenizer, folder / role)
    return folder


@pytest.fixture
def bundled(tiny_pair_folder, monkeypatch):
    """Let the untrained models stand in for those of the bundled pair."""
    load = pairs.load
    monkeypatch.setattr(pairs, "load", lambda name, **options: load(name, **{**options, "folder": tiny_pair_folder}))
