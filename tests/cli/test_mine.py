"""``lossy-assist mine``."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from functools import partial

import pytest
import torch
from transformers import AutoModelForCausalLM

from hf_lossy_assist import pairs
from hf_lossy_assist.training.labelling import LabelFolder, load_mined
from tests.cli.running import said
from tests.forking import ended, fork
from tests.openai_server import completes, openai_server
from tests.tiny_models import noisy_copy

TASK = "tests.training.parts:Letters"


ok = partial(said, "mine")


@pytest.fixture
def models(tiny_pair_folder) -> list[str]:
    target, draft = (str(tiny_pair_folder / role) for role in ("target", "draft"))
    return ["--model", target, "--assistant", draft, "--dtype", "float32"]


@pytest.fixture
def options(models, tmp_path) -> list[object]:
    """Return what mines four prompts of the tiny pair."""
    return ["--task", TASK, *models, "--out", tmp_path / "data", "--limit", 4, "--max-new-tokens", 8]


def figures(printed: str, name: str) -> list[str]:
    return re.findall(rf"^\s*{name}\s+(\S+)", printed, re.MULTILINE)


def figure(printed: str, name: str) -> str:
    (found,) = figures(printed, name)
    return found


def test_judge_labels(options, tmp_path):
    printed = ok(*options, "--batch-size", 3, "--task", f"{TASK}:modulus=3")
    mined = load_mined(tmp_path / "data")
    labels = mined.tokens["important"]
    assert (figure(printed, "prompts"), figure(printed, "mined"), figure(printed, "failed")) == ("4", "4", "0")
    assert int(figure(printed, "mismatches")) == len(labels) > 0
    assert figure(printed, "important") == f"{100 * sum(labels) / len(labels):.1f}"
    tokens = sum(row.columns["target_tokens"] for row in mined.prompts)
    assert figure(printed, "target tokens per mismatch") == f"{tokens / len(labels):.1f}"
    assert sorted(row.id for row in mined.prompts) == [0, 1, 2, 3]
    assert mined.tokens["target_draft"].shape == mined.tokens["target_previous"].shape == (len(labels), 16)

    text = (tmp_path / "data" / "manifest.json").read_text(encoding="utf-8")
    assert text.startswith("{\n  ")  # for people
    manifest = json.loads(text)
    assert (manifest["target"]["name"], manifest["draft"]["name"]) == ("target", "draft")
    assert (manifest["settings"]["data"], manifest["settings"]["named"]) == (None, f"{TASK}:modulus=3")
    (origin,) = manifest["runs"]
    assert {"torch", "transformers", "hf_lossy_assist", "date", "argv", "limit", "batch_size"} <= origin.keys()


def test_a_rounded_target_writes_and_the_target_itself_is_read(options, models, tmp_path, monkeypatch):
    # Rounding changes no text of so small a target, so noise stands in for it.
    monkeypatch.setattr(
        "hf_lossy_assist.training.judge_labels.quantize_draft", lambda model, dtype: noisy_copy(model, 0.3)
    )
    ok(*options, "--limit", 12)
    ok(*options, "--limit", 12, "--labels", "judge:writer_dtype=int4", "--out", tmp_path / "rounded")
    plain, rounded = (load_mined(tmp_path / name) for name in ("data", "rounded"))
    target = AutoModelForCausalLM.from_pretrained(models[1], dtype=torch.float32).eval()
    author = noisy_copy(target, 0.3)
    for mined, model in ((plain, target), (rounded, author)):
        for row in mined.prompts:
            prompt, response = [*row.prompt_tokens], row.columns["first_response"]
            out = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=8, pad_token_id=0)
            assert out[0, len(prompt) :].tolist() == response
    firsts = [[row.columns["first_response"] for row in one.prompts] for one in (plain, rounded)]
    assert firsts[0] != firsts[1], "the test can fail"
    assert rounded.manifest["settings"]["writer_dtype"] == "int4"
    prompts = {row.id: row for row in rounded.prompts}
    tokens = rounded.tokens
    for id, index, state in zip(tokens["prompt_id"], tokens["index"], tokens["target_previous"], strict=True):
        text = [*prompts[id].prompt_tokens, *prompts[id].columns["last_response"][:index]]
        own = target(torch.tensor([text]), output_hidden_states=True).hidden_states[-1][0, -1]
        assert torch.allclose(torch.from_numpy(state), own, atol=1e-4)


def test_a_repeated_command_goes_on(options, tmp_path):
    ok(*options)
    before = load_mined(tmp_path / "data").prompts
    ok(*options, "--limit", 6)
    after = load_mined(tmp_path / "data")
    assert after.prompts[:4] == before
    assert sorted(row.id for row in after.prompts) == list(range(6))
    assert len(after.manifest["runs"]) == 2

    refused = ok(*options, *"--max-new-tokens 9 --sample --temperature 0.7 --seed 3".split(), status=2)
    assert "of `settings` was 8 and is 9" in refused
    assert "`decoding` of `settings` was 'greedy' and is {'temperature': 0.7, 'seed': 3}" in refused
    assert refused.count("\n") == 1
    assert load_mined(tmp_path / "data").prompts == after.prompts


def test_ratio_labels(options, tmp_path):
    printed = ok(*options, "--labels", "ratio:rows=3")
    assert figure(printed, "rows") == str(4 * 4 * 3)
    mined = load_mined(tmp_path / "data")
    assert mined.manifest["kind"] == "ratio"
    assert mined.manifest["settings"]["rows"] == 3
    assert Counter(mined.tokens["kind"].tolist()) == dict.fromkeys(range(4), 12)
    assert 0 < mined.tokens["p"].min() < mined.tokens["q"].max() < 1
    assert mined.tokens["previous"].shape == mined.tokens["token_state"].shape == (48, 16)


def test_the_pair_needs_no_models_and_no_task(tiny_pair_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(pairs, "load", partial(pairs.load, folder=tiny_pair_folder))
    printed = ok("--pair", "arithmetic", "--out", tmp_path, "--limit", 2, "--max-new-tokens", 5)
    # Untrained models state no answer.
    assert figure(printed, "skipped") == "2"
    mined = load_mined(tmp_path)
    assert mined.prompts[0].error == "the target's response states no answer"
    assert [run["pair"] for run in mined.manifest["runs"]] == ["arithmetic"]


def test_a_target_behind_an_api(options, tiny_pair_folder, tmp_path):
    pair = pairs.load("arithmetic", folder=tiny_pair_folder)
    local = options[2:4]
    remote = [option for option in options if option not in local]
    with openai_server(completes(pair.target, pair.tokenizer)) as server:
        ok(*remote, "--target-api", f"{server.url}#org/big")
        names = {request["model"] for request in server.requests}
    mined = load_mined(tmp_path / "data")
    assert names == {"org/big"}
    assert mined.manifest["target"] is None
    assert mined.manifest["settings"]["api_model"] == "org/big"
    assert {"draft_draft", "draft_previous"} <= set(mined.tokens)
    assert not [name for name in mined.tokens if name in ("target_draft", "target_previous")]

    # A copy of the target in this process gives its states.
    with openai_server(completes(pair.target, pair.tokenizer)) as server:
        ok(*options, "--out", tmp_path / "both", "--target-api", f"{server.url}#org/big")
    both = load_mined(tmp_path / "both")
    assert both.manifest["target"]["name"] == "target"
    assert {"target_draft", "target_previous"} <= set(both.tokens)

    refused = ok(*remote, "--target-api", "http://127.0.0.1:9/v1#org/other", status=2)
    assert "`api_model` of `settings` was 'org/big' and is 'org/other'" in refused


def test_an_interrupted_run_says_how_to_go_on(options, tmp_path, monkeypatch):
    add = LabelFolder.add

    def interrupted(self, row, **arrays):
        add(self, row, **arrays)
        if len(self) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(LabelFolder, "add", interrupted)
        printed = ok(*options, status=130)
    assert re.search(r"stopped; repeat the command to continue from .*data", printed)
    assert "Traceback" not in printed
    ok(*options)
    assert len(load_mined(tmp_path / "data").prompts) == 4


def test_processes_on_two_machines_mine_at_once(options, tmp_path):
    """Which are this one twice, and see one folder; the first process of every machine is number 0 there."""
    printed = [tmp_path / "first", tmp_path / "second"]
    environment = {"WORLD_SIZE": 2, "LOCAL_RANK": 0}
    both = [
        fork(lambda: sys.stdout.write(ok(*options)), out=printed[rank], RANK=rank, **environment) for rank in range(2)
    ]
    assert [ended(process) for process in both] == [0, 0]
    assert sorted(row.id for row in load_mined(tmp_path / "data").prompts) == [0, 1, 2, 3]
    # The first to end may only say that the other is at work.
    assert "4" in [found for path in printed for found in figures(path.read_text(), "prompts")]


def test_models_with_other_vocabularies_are_refused(models, tiny_pair_folder, tmp_path):
    from tests.tiny_models import tiny

    tiny().save_pretrained(tmp_path / "small")
    refused = ok("--task", TASK, *models, "--assistant", tmp_path / "small", "--out", tmp_path / "data", status=2)
    assert "`--assistant` has to share the target's tokenizer" in refused
