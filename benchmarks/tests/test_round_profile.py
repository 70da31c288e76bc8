"""A profile leaves the forward passes out, and counts one round for each forward pass of the target."""

from __future__ import annotations

import pytest
import torch
from typer.testing import CliRunner

from benchmarks.round_profile import BetweenForwards, app, place
from hf_lossy_assist import pairs


def test_only_what_is_between_the_forward_passes():
    models = pairs.load("arithmetic")
    ids = torch.tensor([[1, 2, 3]])
    with BetweenForwards(models.target) as between:
        models.target(ids)
        models.target(ids)
        torch.cumsum(ids, 1)
    names = {name for where, name in between.operations() if where == "torch, in C"}
    assert between.forwards == 2
    assert "cumsum" in names
    assert names.isdisjoint({"linear", "scaled_dot_product_attention", "embedding"})
    assert not models.target._forward_hooks


@pytest.mark.parametrize("mode", ["lossless", "stock"])
def test_both_loops_are_profiled(mode: str):
    result = CliRunner().invoke(app, ["--mode", mode, "--prompts", "1"], env={"COLUMNS": "120"}, catch_exceptions=False)
    assert "per round in all" in result.output
    assert ("acceptors/base.py" in result.output) is (mode == "lossless")


def test_places():
    assert place("~", "<method 'argmax' of 'torch._C.TensorBase' objects>") == ("torch, in C", "argmax")
    assert place("~", "<built-in method torch.cat>") == ("torch, in C", "cat")
    assert place("/x/site-packages/transformers/generation/utils.py", "sample") == ("transformers", "sample")
