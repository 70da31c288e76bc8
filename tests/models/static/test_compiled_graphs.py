"""What is compiled is recorded as graphs: its texts, what is compiled for them, and where only one of both is done."""

from __future__ import annotations

import pytest
import torch
from transformers import CompileConfig

from hf_lossy_assist.models.static.graphs import RECORDERS, CompiledRecording
from tests.eagle3_heads import trained_pair
from tests.graphs import CASES, EAGER, RECORDINGS, Backend, assert_same, generated, llamas
from tests.tiny_models import padded

# Each case by itself is recorded with one text and with a batch by test_graphs.
NIGHTLY = pytest.mark.nightly


@pytest.mark.parametrize(
    ("pair", "case", "inputs"),
    [
        pytest.param(llamas, "greedy, default length", padded(), marks=NIGHTLY), (llamas, "tree", {}),
        (llamas, "drawn, processed", padded()), (trained_pair, "greedy", padded()),
        pytest.param(trained_pair, "drawn, processed", {}, marks=NIGHTLY),
    ],
)  # fmt: skip
def test_what_is_compiled_is_recorded(pair, case, inputs, recorder, default_ends):
    backend = Backend()
    kwargs = CASES[case] | inputs | {"compile_config": CompileConfig(backend=backend)}
    assert_same(recorder, *pair(), **kwargs, graphs={"compile": True})
    assert recorder.recordings == RECORDINGS.get(case, 3) + (pair is trained_pair)
    # Of EAGLE-3: the forward over what a round committed, and a token's, with and without the LM head.
    assert backend.graphs == (4 if pair is trained_pair else 3)


def test_other_settings_of_a_draw_compile_nothing(recorder):
    """A graph records how a token is chosen; what is compiled are the forwards before."""
    pair, backend = llamas(), Backend()
    for temperature in (0.8, 0.5):
        recorder.replays = 0
        kwargs = {"do_sample": True, "temperature": temperature, "num_assistant_tokens": 4}
        assert_same(recorder, *pair, **kwargs, compile_config=CompileConfig(backend=backend), graphs={"compile": True})
        assert backend.graphs == 3  # the target's, and the draft's over two tokens and one


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"mode": "default"}),
        ({"mode": "max-autotune"}, {"mode": "max-autotune-no-cudagraphs"}),
        ({"mode": None, "options": {"triton.cudagraphs": True}}, {"options": {"triton.cudagraphs": False}}),
    ],
)
def test_what_is_compiled_records_no_graphs_of_its_own(given, expected, recorder):
    config = CompileConfig(**given)
    before = config.to_dict()
    options = CompiledRecording(recorder, config).compiling.options
    assert {name: options[name] for name in expected} == expected
    assert config.to_dict() == before


def test_what_can_t_be_recorded_is_compiled(recorder, monkeypatch):
    def refuses(body, device, memory):
        body()
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setitem(RECORDERS, "cpu", refuses)
    (target, draft), backend = llamas(), Backend()
    kwargs = {"compile_config": CompileConfig(backend=backend), "lossy_config": {"compile": True}}
    with pytest.warns(UserWarning, match="recording graphs has no effect here: LlamaForCausalLM can't be recorded"):
        text = generated(target, draft, **kwargs)
    assert torch.equal(text, generated(target, draft, lossy_config=EAGER))
    compiled = backend.graphs
    with torch.compiler.set_stance("fail_on_recompile"):
        generated(target, draft, **kwargs)
    assert compiled == backend.graphs >= 3


def test_a_returned_static_cache_is_not_recorded_on(recorder):
    """A graph refers to its cache, and would keep it."""
    target, draft = llamas()
    compiled = {"lossy_config": {"compile": True}, "compile_config": CompileConfig(backend=Backend())}
    generated(target, draft, cache_implementation="static", return_dict_in_generate=True, **compiled)
    assert recorder.recordings == 1  # the draft's
