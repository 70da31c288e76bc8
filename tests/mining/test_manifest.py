"""Which runs may add to a folder, and which may not."""

from __future__ import annotations

import dataclasses
import json

import pytest

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.mining.mining_run import MiningPlan, open_run
from tests.tiny_models import noisy_copy, tiny

TARGET = tiny("llama", 0)
SETTINGS = {"max_new_tokens": 8, "decoding": "greedy", "seed": (1, 2)}
PLAN = MiningPlan("judge", "checksum", TARGET, noisy_copy(TARGET), SETTINGS)


def test_a_run_is_entered(tmp_path):
    folder = tmp_path / "new" / "data"
    open_run(folder, PLAN, {"argv": ["lossy-assist", "mine"], "torch": "2"})
    open_run(folder, PLAN, {"argv": ["again"]})
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["kind"] == "judge"
    assert manifest["task"] == "checksum"
    assert manifest["target"]["architecture"] == "LlamaForCausalLM"
    assert manifest["draft"]["hidden_size"] == 32
    assert manifest["settings"] == {"max_new_tokens": 8, "decoding": "greedy", "seed": [1, 2]}
    assert [run["argv"] for run in manifest["runs"]] == [["lossy-assist", "mine"], ["again"]]
    assert not list(folder.glob("*.partial"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "ratio"}, "`kind` was 'judge' and is 'ratio'"),
        ({"task": "gsm8k"}, "`task` was 'checksum' and is 'gsm8k'"),
        ({"settings": {**SETTINGS, "max_new_tokens": 9}}, "`max_new_tokens` was 8 and is 9;"),
        ({"settings": {**SETTINGS, "decoding": {"temperature": 0.5}}}, r"`decoding` was 'greedy' and is \{'temp"),
        ({"settings": {**SETTINGS, "new": 1}}, "`new` was None and is 1"),
        ({"target": tiny("llama", 1)}, "of the target, the weights of the LM head differ"),
        ({"draft": tiny("qwen3")}, "of the draft, the architecture is Qwen3ForCausalLM, not LlamaForCausalLM"),
        ({"target": None}, "of the target, there is none"),
    ],
)
def test_another_plan_is_refused_and_named(tmp_path, changes, message):
    open_run(tmp_path, PLAN, {})
    before = (tmp_path / "manifest.json").read_text()
    with pytest.raises(LossyValueError, match=message):
        open_run(tmp_path, dataclasses.replace(PLAN, **changes), {})
    assert (tmp_path / "manifest.json").read_text() == before


def test_a_plan_without_a_target_is_one_too(tmp_path):
    plan = dataclasses.replace(PLAN, target=None)
    open_run(tmp_path, plan, {})
    open_run(tmp_path, plan, {})
    assert json.loads((tmp_path / "manifest.json").read_text())["target"] is None
    with pytest.raises(LossyValueError, match="there was none"):
        open_run(tmp_path, PLAN, {})
