"""Modes in vLLM: requests, answers and faults of a process, with a stand-in for vLLM."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hf_lossy_assist import LossyError, LossyUnsupportedError, LossyValueError, quantize_draft
from hf_lossy_assist.evaluation.evaluation import Evaluation
from hf_lossy_assist.evaluation.modes import DecodingMode, parse_modes
from hf_lossy_assist.evaluation.requests import batches_of
from hf_lossy_assist.integrations.vllm.engines import Engine, VllmEngines, engine_settings, request_of
from tests.cli.running import invoke

PYTHON = Path(sys.executable)
# Each token is the number of the prompt's tokens. Of five, the prompt's round gives the first, and a draft that is kept
# whole the others.
STAND_IN = """
from types import SimpleNamespace as Is
from tests.cli.running import invoke
print("a line of vLLM's own")
class SamplingParams:
    def __init__(self, **given): self.given = given
class LLM:
    def __init__(self, **given): self.given = given
    def generate(self, prompts, parameters, use_tqdm):
        print("another")
        if parameters.given.get("extra_args", {}).get("lossy_mode") == "fly":
            raise ValueError("no `fly` here")
        metrics = Is(histogram=[0, 0, 0, 0, 1], num_draft_tokens=4)
        metrics = metrics if "speculative_config" in self.given else None
        tokens = [[len(p["prompt_token_ids"])] * parameters.given["max_tokens"] for p in prompts]
        return [Is(outputs=[Is(token_ids=own, spec_decode_metrics=metrics)]) for own in tokens]
"""


@pytest.fixture
def _stand_in(tmp_path, monkeypatch) -> None:
    (tmp_path / "vllm.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[2]}")


@pytest.mark.usefixtures("_stand_in")
def test_a_comparison_of_both_engines(pair):
    with VllmEngines(PYTHON, threads=1) as engines:
        modes = [*parse_modes("plain"), *engines.modes(parse_modes("plain,stock@4"))]
        evaluation = Evaluation(pair, modes, "plain", 2, max_new_tokens=5)
        result = evaluation.complete(None)
        assert len(engines._started) == 2
        batches = batches_of([[5, 6, 7], [5, 6]], 2)
        [rule] = engines.modes(parse_modes("topk@4"))
        both = rule.engine.respond(pair, rule, batches[0], 5)
        [refused] = engines.modes(parse_modes("fly@4"))
        with pytest.raises(LossyValueError, match="no `fly` here"):
            refused.engine.respond(pair, refused, batches[0], 5)
        processes = [engine._process for engine in engines._started.values()]
    assert [process.poll() for process in processes] == [0, 0]  # rules share the engine of their draft length
    assert both.work == [(2, 4, 0)] * 2
    assert [*result.modes] == ["plain", "vLLM: plain", "vLLM: its own lossless@4"]
    drafted = result.modes["vLLM: its own lossless@4"]
    assert (drafted.mean_accepted, drafted.tokens_per_round) == (2.0, 2.5)
    assert modes[2].config == {"engine": "vllm", "num_assistant_tokens": 4}
    assert drafted.speed.times.keys() == {"plain"}


@pytest.mark.usefixtures("_stand_in")
def test_commands_end_their_engines(tmp_path, monkeypatch):
    started, start = [], Engine.__init__
    monkeypatch.setattr(Engine, "__init__", lambda self, *given: (started.append(self), start(self, *given))[1])
    arguments = ["--pair", "arithmetic", "--modes", "plain,topk@4", "--limit", "2"]
    arguments += ["--engine", "vllm", "--vllm-python", PYTHON, "--out", str(tmp_path / "out")]
    result = invoke(["evaluate", *arguments, "--max-new-tokens", "5"])
    assert result.exit_code == 0, result.output
    assert [engine._process.poll() for engine in started] == [0, 0]


def test_settings_and_requests(pair):
    stock, rule = parse_modes("stock@4,topk@3:k=3", 5, temperature=0.5)
    assert engine_settings(pair, stock)["speculative_config"] == {
        "method": "draft_model", "model": pair.draft.name_or_path, "num_speculative_tokens": 4,
        "draft_sample_method": "probabilistic",
    }  # fmt: skip
    assert engine_settings(pair, stock)["additional_config"] == {"lossy": {}}
    assert "extra_args" not in request_of(pair, stock, batches_of([[5]])[0], 7)["parameters"]
    assert "additional_config" not in engine_settings(pair, replace(stock, gamma=None))
    assert engine_settings(pair, stock)["max_model_len"] == 512  # as many positions as the bundled target has
    assert engine_settings(pair, rule)["additional_config"] == {"lossy": {}}
    [batch] = batches_of([[5, 6, 7], [5]], 2, seed=9)
    request = request_of(pair, rule, batch, 7)
    assert request["prompts"] == [[5, 6, 7], [5]]
    assert request["parameters"]["extra_args"] == {"lossy_mode": "topk", "lossy_config": {"k": 3, "seed": 9}}
    assert (request["parameters"]["max_tokens"], request["parameters"]["temperature"]) == (7, 0.5)


@pytest.mark.usefixtures("_stand_in")
def test_modes_that_vllm_lacks_and_drafts_that_were_rounded_here(pair):
    with VllmEngines(PYTHON) as engines:
        certified = DecodingMode("certified", "topk", {"k": 2, "certificate": "certified"}, 4)
        for mode in (*parse_modes("draft,lossless@auto"), certified):
            with pytest.raises(LossyValueError, match=f"`--modes` has '{mode.label}', which can't run in vLLM"):
                engines.modes([mode])
        with pytest.raises(LossyUnsupportedError, match=r"`draft_dtype` 'int8'.*leave it out"):
            engines.of(replace(pair, draft=quantize_draft(pair.draft)), *parse_modes("topk@4", 5))


def test_an_environment_without_vllm():
    with pytest.raises(LossyError, match="No module named 'vllm'"):
        Engine(PYTHON, {})


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import sys; sys.exit('out of memory')", "out of memory"),
        ("import sys, time; print('still loading', file=sys.stderr, flush=True); time.sleep(60)", "still loading"),
    ],
)
def test_a_process_that_ends_or_hangs(program: str, said: str):
    with pytest.raises(LossyError, match=f"(?s)vLLM's process ended, or was stopped after 1 seconds.*{said}"):
        Engine(PYTHON, {}, program=("-c", program), seconds=1.0)
