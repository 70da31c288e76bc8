"""One layer of each kind is compiled, and gives the texts of the whole model."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from transformers import CompileConfig, GPT2Config, GPT2LMHeadModel, GptOssConfig, GptOssForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from hf_lossy_assist.compat import CACHE
from hf_lossy_assist.models.static.cache_slot import StaticCacheSlot, new_static_cache
from hf_lossy_assist.models.static.forwards import Compiling, states_of
from hf_lossy_assist.models.static.layerwise import CompilingLayers, compiling, layer_kinds_of
from tests.eagle3_heads import trained_pair
from tests.graphs import EAGER, Backend
from tests.tiny_models import ARCHITECTURES, VOCAB, noisy_copy, padded, prompt, tiny

SHAPES = 3  # the target's γ + 1 tokens, and the draft's two and one
KINDS = dict.fromkeys(ARCHITECTURES, 1) | {"gemma3": 2, "gpt_oss": 2, "llama of 12 layers": 1, "gemma3 of 12 layers": 2}


def gpt_oss():
    """Mixed attention, sinks, and experts."""
    torch.manual_seed(0)
    config = GptOssConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=16, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=8,
        max_position_embeddings=256, initializer_range=0.2, bos_token_id=1, eos_token_id=2, pad_token_id=0,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )  # fmt: skip
    return GptOssForCausalLM(config).eval()


def deep(architecture: str, layers: int = 12):
    config = copy.deepcopy(tiny(architecture).config)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = (["sliding_attention"] * 2 + ["full_attention"]) * (layers // 3)
    torch.manual_seed(1)
    return type(tiny(architecture))(config).eval()


def model_of(name: str):
    name, *more = name.split(" of ")
    return deep(name) if more else gpt_oss() if name == "gpt_oss" else tiny(name)


def texts(target, draft, backend, fullgraph=False, **kwargs):
    """Return the texts of forwards one by one, and compiled."""
    kwargs = {"input_ids": prompt(9), "num_assistant_tokens": 4, "do_sample": False, "eos_token_id": None} | kwargs
    config, found = CompileConfig(backend=backend, fullgraph=fullgraph), []
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*(no effect|no longer compiles)")
        for more in (EAGER, {"compile": True}):
            settings = {"lossy_mode": "lossless", "lossy_config": {"seed": 3} | more, "compile_config": config}
            found.append(target.generate(assistant_model=draft, **settings, max_new_tokens=24, **kwargs))
    return found


@pytest.mark.parametrize("architecture", KINDS)
def test_as_many_graphs_as_kinds_of_layers(architecture):
    target, backend = model_of(architecture), Backend()
    with torch._dynamo.config.patch(recompile_limit=1):  # nothing is compiled twice
        eager, compiled = texts(target, noisy_copy(target), backend)
    assert torch.equal(eager, compiled)
    assert backend.graphs == KINDS[architecture] * SHAPES


@pytest.mark.parametrize(
    "case",
    [
        padded(), padded() | {"do_sample": True, "temperature": 0.8},
        {"lossy_config": {"tree": {"depth": 3, "top_k": 2, "nodes": 8}}},
    ],
)  # fmt: skip
def test_batches_draws_and_trees(case):
    target = tiny("gemma3")
    case = dict(case)
    config = case.pop("lossy_config", {})
    kwargs = {"input_ids": prompt(9), "max_new_tokens": 24, "do_sample": False, "eos_token_id": None} | case
    found = [
        target.generate(
            assistant_model=noisy_copy(target), lossy_mode="lossless", lossy_config={"seed": 3} | config | more,
            compile_config=CompileConfig(backend="eager"), **kwargs,
        )
        for more in (EAGER, {"compile": True})
    ]  # fmt: skip
    assert torch.equal(*found)


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
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 5, "n_head": 4, "n_positions": 256}
    return GPT2LMHeadModel(GPT2Config(**sizes, scale_attn_by_inverse_layer_idx=True, initializer_range=0.2)).eval()


def replaced():
    model = tiny("llama")
    model.model.layers[1].mlp.forward = model.model.layers[1].mlp.forward
    return model


@pytest.mark.parametrize("model", [numbered, scaled, replaced])
def test_a_model_whose_layers_can_t_be_run_apart_is_compiled_whole(model):
    target, backend = model(), Backend()
    assert layer_kinds_of(target) is None
    assert torch.equal(*texts(target, noisy_copy(tiny("llama")), backend))
    assert backend.graphs == 1 + 2  # of the draft, both widths of one kind


def test_hooks_on_layers_run():
    target, seen = tiny("llama"), []
    target.model.layers[1].register_forward_hook(lambda *_: seen.append(1))
    slot, how = StaticCacheSlot(new_static_cache(target, 64)), CompilingLayers(CompileConfig(backend="eager"))
    states = how.part(target, slot, 3, states_of)
    seen.clear()
    with torch.no_grad():
        states(input_ids=prompt(3), use_cache=True, **{CACHE: slot.cache})
    assert seen == [1]
