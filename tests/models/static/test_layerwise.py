"""One layer of each kind is compiled, and gives the texts of the whole model."""

from __future__ import annotations

import warnings

import pytest
import torch
from transformers import CompileConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from hf_lossy_assist.compat.caches import CACHE
from hf_lossy_assist.models.static.cache_slot import StaticCacheSlot, new_static_cache
from hf_lossy_assist.models.static.forwards import (
    TUNING,
    Compiling,
    CompilingLayers,
    compiling,
    layer_kinds_of,
    states_of,
)
from tests.architectures import made
from tests.eagle3_heads import trained_pair
from tests.graphs import EAGER, Backend, assert_same
from tests.nightly import nightly
from tests.tiny_models import ARCHITECTURES, noisy_copy, padded, prompt, tiny

FEWER = TUNING["cuda"]
SHAPES = 3  # the target's γ + 1 tokens, and the draft's two and one
KINDS = dict.fromkeys(ARCHITECTURES, 1) | {"gemma3": 2, "gpt_oss": 2, "gemma3 of 6 layers": 2}


def model_of(name: str):
    if name == "gemma3 of 6 layers":
        kinds = ["sliding_attention", "sliding_attention", "full_attention"] * 2
        return made("gemma3_text", num_hidden_layers=6, layer_types=kinds).float()
    return made(name).float() if name == "gpt_oss" else tiny(name)


def texts(target, draft, backend, fullgraph=False, **kwargs):
    """Return the texts of forwards one by one, and compiled."""
    kwargs = {"input_ids": prompt(9), "do_sample": False, "eos_token_id": None} | kwargs
    kwargs |= {} if draft is None else {"num_assistant_tokens": 4}
    config, found = CompileConfig(backend=backend, fullgraph=fullgraph), []
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*(no effect|no longer compiles)")
        for more in (EAGER, {"compile": True}):
            settings = {"lossy_mode": "lossless", "lossy_config": {"seed": 3} | more, "compile_config": config}
            found.append(target.generate(assistant_model=draft, **settings, max_new_tokens=14, **kwargs))
    return found


# Of "llama" and "gemma3", other tests.
@pytest.mark.parametrize("architecture", nightly([*KINDS][1:], but=("mistral", "gpt_oss", "gemma3 of 6 layers")))
def test_as_many_graphs_as_kinds_of_layers(architecture):
    target, backend = model_of(architecture), Backend()
    torch._dynamo.reset()  # other tests compile the same layers
    with torch._dynamo.config.patch(recompile_limit=1):  # nothing is compiled twice
        eager, compiled = texts(target, noisy_copy(target), backend)
    assert torch.equal(eager, compiled)
    assert backend.graphs == KINDS[architecture] * SHAPES


@pytest.mark.parametrize(
    ("case", "config"),
    [
        pytest.param(padded() | {"do_sample": True, "temperature": 0.8}, {}, marks=pytest.mark.nightly),
        (padded(), {"tree": {"depth": 3, "top_k": 2, "nodes": 8}}),
    ],
)
def test_batches_draws_and_trees(case, config, recorder):
    """Compiled and recorded, with heads that attend together: as on CUDA."""
    target = tiny("gemma3")
    compiled = CompileConfig(backend=Backend())
    assert_same(recorder, target, noisy_copy(target), config, {"compile": True}, compile_config=compiled, **case)


def test_a_target_whose_states_are_read_between_its_layers():
    """EAGLE-3 reads three; the head has one layer, and is compiled whole: its two shapes, and a token's logits."""
    target, head = trained_pair("llama")
    backend = Backend()
    assert torch.equal(*texts(target, head, backend))
    assert backend.graphs == 1 + 3


def test_one_graph_is_made_of_the_whole_model_where_that_is_asked_for():
    target, backend = tiny("gemma3"), Backend()
    assert torch.equal(*texts(target, noisy_copy(target), backend, fullgraph=True))
    assert backend.graphs == SHAPES
    assert type(compiling(None)) is CompilingLayers
    assert type(compiling(CompileConfig(fullgraph=True))) is Compiling


@pytest.mark.parametrize("threads", [1, 3])
def test_heads_that_share_keys_attend_together(threads, monkeypatch):
    """Keys are not copied for each head, unless threads of a CPU would have nothing to do."""
    target, shapes = tiny("llama"), []
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)

    def backend(graph, inputs, **options):
        for node in graph.graph.nodes:
            if "scaled_dot_product" in str(node.target):
                shapes.append(tuple(node.args[1].meta["example_value"].shape[:2]))
        return graph.forward

    before = target.config._attn_implementation
    assert torch.equal(*texts(target, None, backend, prompt_lookup_num_tokens=3, input_ids=prompt(6).repeat(1, 3)))
    heads = target.config.num_key_value_heads if threads == 1 else target.config.num_attention_heads
    assert set(shapes) == {(1, heads)}
    assert target.config._attn_implementation == before == "sdpa"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"mode": "default"}, {"mode": None, "options": FEWER}),
        ({"mode": "max-autotune-no-cudagraphs"}, {"mode": "max-autotune-no-cudagraphs", "options": None}),
        ({"options": {"epilogue_fusion": True}}, {"mode": None, "options": {"epilogue_fusion": True}}),
        ({"mode": "default", "backend": "aot_eager"}, {"mode": "default", "options": None}),
    ],
)
@torch.no_grad()
def test_what_inductor_is_asked_for(given, expected, monkeypatch):
    """On a device whose kernels are tuned, unless the user asks for something else."""
    target, asked = tiny("llama"), []
    slot, how = StaticCacheSlot(new_static_cache(target, 64)), CompilingLayers(CompileConfig(**given))
    monkeypatch.setattr(torch, "compile", lambda function, **options: asked.append(options) or function)
    monkeypatch.setitem(TUNING, "cpu", FEWER)
    states = how.part(target, slot, 3, states_of)
    assert [{name: options[name] for name in expected} for options in asked] == [expected]
    got = states(input_ids=prompt(3), use_cache=True, **{CACHE: slot.cache})[0]
    torch.testing.assert_close(got, target.model(prompt(3)).last_hidden_state)


def test_inductor_takes_these_options():
    torch.compile(prompt, backend="inductor", mode=None, options=FEWER)  # which would refuse others


class Numbered(LlamaDecoderLayer):
    """Reads its own number."""

    def forward(self, hidden_states, *args, **kwargs):
        return super().forward(hidden_states * (1 + self.self_attn.layer_idx), *args, **kwargs)


def numbered():
    model = tiny("llama")
    for layer in model.model.layers:
        layer.__class__ = Numbered
    return model


def scaled():
    """Each of its layers is scaled by its number: there are as many kinds as layers."""
    return made("gpt2", n_layer=5, scale_attn_by_inverse_layer_idx=True).float()


def replaced():
    model = tiny("llama")
    model.model.layers[1].mlp.forward = model.model.layers[1].mlp.forward
    return model


def adapted():
    model = tiny("llama")
    model.model.layers[1].mlp.active_adapters = ["default"]
    return model


@pytest.mark.parametrize("model", [numbered, scaled, replaced, adapted])
def test_layers_that_can_t_be_run_apart(model):
    assert layer_kinds_of(tiny("llama")) is not None
    assert layer_kinds_of(model()) is None


def test_a_model_whose_layers_can_t_be_run_apart_is_compiled_whole():
    target, backend = numbered(), Backend()
    assert torch.equal(*texts(target, None, backend, prompt_lookup_num_tokens=3))
    assert backend.graphs == 1


def through_adapters(target):
    target.model.layers[0].mlp._disable_adapters = True


def by_mode(target):
    target.model.layers[0].self_attn.train()


def by_attention(target):
    target.set_attn_implementation("eager")


@pytest.mark.parametrize("change", [through_adapters, by_mode, by_attention])
def test_changed_layers_are_copied_anew(change, monkeypatch):
    target, compiled = tiny("llama"), []
    slot, how = StaticCacheSlot(new_static_cache(target, 64)), CompilingLayers(None)
    monkeypatch.setattr(torch, "compile", lambda function, **_: compiled.append(function) or function)
    for times in (1, 1):
        how.part(target, slot, 3, states_of)
        assert len(compiled) == times
    change(target)
    how.part(target, slot, 3, states_of)
    assert len(compiled) > 1


def test_hooks_on_layers_run():
    target, seen = tiny("llama"), []
    target.model.layers[1].register_forward_hook(lambda *_: seen.append(1))
    slot, how = StaticCacheSlot(new_static_cache(target, 64)), CompilingLayers(CompileConfig(backend="eager"))
    states = how.part(target, slot, 3, states_of)
    seen.clear()
    with torch.no_grad():
        states(input_ids=prompt(3), use_cache=True, **{CACHE: slot.cache})
    assert seen == [1]


@torch.no_grad()
def test_a_forward_s_tokens_are_counted_for_all_layers_at_once(monkeypatch):
    """So each compiled layer has a kernel less; every layer of a cache knows what it holds, as it does one by one."""
    target, counted, add = tiny("gemma3"), [], torch._foreach_add_
    slot, plain = (StaticCacheSlot(new_static_cache(target, 64)) for _ in range(2))

    monkeypatch.setattr(torch, "_foreach_add_", lambda *given: counted.append(given) or add(*given))
    states = CompilingLayers(CompileConfig(backend=Backend())).part(target, slot, 3, states_of)
    counted.clear()  # the layers were tried
    text = prompt(12)
    for start, end, times in ((0, 5, 0), (5, 6, 1), (6, 12, 2)):  # the first forward makes the layers' keys
        inputs = {"input_ids": text[:, start:end], "position_ids": torch.arange(start, end)[None], "use_cache": True}
        got, exact = states(**inputs, **{CACHE: slot.cache})[0], target.model(**inputs, **{CACHE: plain.cache})[0]
        torch.testing.assert_close(got, exact)
        for own, wanted in zip(slot.cache.layers, plain.cache.layers, strict=True):
            assert int(own.cumulative_length) == int(wanted.cumulative_length) == end
            torch.testing.assert_close(own.keys, wanted.keys)
        assert len(counted) == times
    assert all(len(lengths) == len(slot.cache.layers) for lengths, _ in counted)
