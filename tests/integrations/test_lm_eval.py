"""The model of lm-evaluation-harness, against the real package."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest
import torch

from hf_lossy_assist import LossyUnsupportedError, LossyValueError
from hf_lossy_assist.integrations import lm_eval as harness
from tests.cli.running import invoke

installed = pytest.mark.skipif(find_spec("lm_eval") is None, reason="the extra `lm-eval` is not installed")

TASK = """
task: tiny_recital
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: generate_until
doc_to_text: "{{{{prompt}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs:
  until: ["Question:"]
  max_gen_toks: 8
metric_list:
  - metric: exact_match
"""


@pytest.mark.skipif(find_spec("lm_eval") is not None, reason="it is installed")
def test_without_the_extra_an_error_says_what_to_install():
    with pytest.raises(LossyUnsupportedError, match=r"hf-lossy-assist\[lm-eval\]"):
        harness.register()


@pytest.fixture
def task(tmp_path):
    rows = [{"prompt": f"Question: How many are {i} and 7?\nAnswer:", "answer": "!"} for i in range(3)]
    data = tmp_path / "problems.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "tiny.yaml").write_text(TASK.format(data=data))
    return ["--tasks", "tiny_recital", "--include_path", str(folder), "--log_samples"]


def responses(folder, *arguments):
    """Return what the command says to every problem, and the results that it stores."""
    result = invoke(["lm-eval", *arguments, "--device", "cpu", "--output_path", str(folder)])
    assert result.exit_code == 0, result.output + str(result.exception)
    samples = next(folder.rglob("samples_*.jsonl")).read_text().splitlines()
    (stored,) = folder.rglob("results_*.json")
    said = {row["doc_id"]: row["resps"] for row in map(json.loads, samples)}
    return [said[i] for i in sorted(said)], json.loads(stored.read_text())


@installed
def test_lossless_runs_say_what_the_harness_s_own_model_says(tiny_pair_folder, task, tmp_path):
    target = f"pretrained={tiny_pair_folder / 'target'},dtype=float32"
    assisted = f"{target},assistant={tiny_pair_folder / 'draft'}"
    plain, _ = responses(tmp_path / "a", "--model", "hf", "--model_args", target, *task)
    lossless, stored = responses(tmp_path / "b", "--model_args", assisted, "--batch_size", "2", *task)
    assert lossless == plain
    assert stored["config"]["model"] == "hf-lossy"


@installed
def test_what_is_lossy_is_said_by_the_model_s_arguments(tiny_pair_folder):
    make, target = harness.register(), str(tiny_pair_folder / "target")
    options = {"assistant": str(tiny_pair_folder / "draft"), "device": "cpu", "dtype": "float32"}
    asked = {"context": torch.arange(3, 23).view(2, 10), "max_length": 22, "stop": ["Question:"], "do_sample": False}
    strict, bold = make(target, **options), make(target, lossy_mode="topk+typical@4:topk.k=9999", **options)
    everything, lossless = bold._model_generate(**asked), strict._model_generate(**asked)
    assert everything.tolist() != lossless.tolist() == strict.model.generate(
        asked["context"], max_length=22, do_sample=False, pad_token_id=strict.tokenizer.pad_token_id
    ).tolist()  # fmt: skip
    for alone in ({"lossy_mode": "topk"}, {"lossy_head": "org/head"}):
        with pytest.raises(LossyValueError, match=r"`model_args` has `lossy_mode`.*nothing drafts"):
            make(target, device="cpu", **alone)
