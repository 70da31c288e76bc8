"""Grown models compute what the small ones compute."""

from __future__ import annotations

import copy
import types

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from benchmarks.growing.geometry import PRESETS, Geometry, parse_geometry
from benchmarks.growing.grow import grow
from hf_lossy_assist import pairs
from hf_lossy_assist.errors import LossyUnsupportedError, LossyValueError
from tests.tiny_models import VOCAB, prompt, tiny

GEOMETRIES = [
    "layers=5",
    "hidden=48",
    "intermediate=77",
    "head_dim=24",
    "hidden=64,heads=8,kv_heads=8",
    "hidden=96,heads=12,kv_heads=4,layers=3",
    "heads=16,kv_heads=4,hidden=160,head_dim=16,vocab=100",
]


def llama(**options):
    """Return a random Llama that is built like those of the bundled pair."""
    torch.manual_seed(0)
    sizes = {
        "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 256, "initializer_range": 0.2,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None, "tie_word_embeddings": True,
    }  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**sizes | options)).eval()


@torch.no_grad()
def logits(model, ids):
    return model(input_ids=ids).logits


@pytest.fixture(scope="module")
def bundled():
    return pairs.load("arithmetic")


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_logits_are_those_of_the_small_model(geometry):
    model, ids = llama(), prompt(24)
    before = copy.deepcopy(model.state_dict())
    grown = grow(model, parse_geometry(geometry))
    said, wanted = logits(grown, ids), logits(model, ids)
    torch.testing.assert_close(said[..., :VOCAB], wanted, rtol=1e-4, atol=2e-4)
    assert not (said[..., VOCAB:] > wanted.amin(-1, keepdim=True) - 100).any()
    assert Geometry.of(grown.config) == parse_geometry(geometry).over(Geometry.of(model.config))
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])


@pytest.mark.parametrize(
    "geometry",
    ["layers=7", "hidden=512", "hidden=576,heads=9,kv_heads=9,intermediate=1024", "hidden=512,heads=16,vocab=1000"],
)
def test_the_bundled_target_says_the_same_when_it_is_large(bundled, geometry):
    grown = grow(bundled.target, parse_geometry(geometry))
    for example in bundled.task.examples("test", 2):
        ids = bundled.tokenizer(example.prompt + example.solution, return_tensors="pt")["input_ids"]
        said, wanted = logits(grown, ids), logits(bundled.target, ids)
        assert said.argmax(-1).tolist() == wanted.argmax(-1).tolist()
        assert (said[..., : wanted.shape[-1]] - wanted).abs().max() < 2e-4
    ids = bundled.tokenizer(bundled.task.examples("test", 1)[0].prompt, return_tensors="pt")
    alone, large = (m.generate(**ids, do_sample=False, max_new_tokens=20) for m in (bundled.target, grown))
    assert large.tolist() == alone.tolist()


def test_what_enters_the_head_begins_with_the_small_model_s_state(bundled):
    grown = grow(bundled.target, parse_geometry("hidden=512,vocab=1000,layers=5"))
    ids = torch.arange(5, 60)[None]
    with torch.no_grad():
        small, large = (m.model(input_ids=ids).last_hidden_state for m in (bundled.target, grown))
    torch.testing.assert_close(large[..., :256], small, rtol=1e-4, atol=1e-4)


def test_padded_tokens_are_never_chosen():
    ids, model = prompt(9), llama()
    with torch.no_grad():  # so that all logits are far below 0
        model.model.embed_tokens.weight.mul_(0.5).add_(1.0)
        model.model.norm.weight.fill_(-3.0)
    wanted = logits(model, ids)[0, -1]
    assert (wanted < -10).all()
    grown = grow(model, parse_geometry("hidden=128,vocab=5000"))
    said = logits(grown, ids)[0, -1]
    assert said.argmax() == wanted.argmax()
    assert (said / 2).softmax(-1)[VOCAB:].sum() == 0
    # Nor by heads that do not see a part of the state.
    with torch.no_grad():
        state = grown.model(input_ids=ids).last_hidden_state[0, -1]
        masks = torch.empty(200, 128).bernoulli_(0.5, generator=torch.Generator().manual_seed(0)) * 2
        assert (grown.lm_head(state * masks).argmax(-1) < VOCAB).all()
    half = grow(model.bfloat16(), parse_geometry("hidden=128,vocab=5000"))
    assert half.dtype == torch.bfloat16
    assert logits(half, ids)[0, -1].argmax() < VOCAB
    assert (logits(half, ids).isfinite()).all()


def test_a_grown_model_survives_saving(tmp_path):
    grown = grow(llama(), parse_geometry("hidden=128,head_dim=16,layers=3,vocab=90"))
    grown.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    ids = prompt(20)
    assert torch.equal(logits(loaded, ids), logits(grown, ids))


def test_padding_that_is_never_seen_is_not_zero():
    grown = grow(llama(), parse_geometry("layers=4,hidden=64,intermediate=96"))
    added = grown.model.layers[3]
    seen = [x.weight for x in (added.self_attn.q_proj, added.self_attn.v_proj, added.mlp.gate_proj, added.mlp.up_proj)]
    for weight in (*seen, grown.model.layers[0].mlp.up_proj.weight[48:]):
        assert weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert not added.self_attn.o_proj.weight.any()
    assert not added.mlp.down_proj.weight.any()


def test_presets_are_the_published_sizes():
    assert PRESETS["llama-8b"] == Geometry(4096, 32, 32, 8, 128, 14336, 128256)
    for name, billions in (("llama-1b", 1.5), ("llama-3b", 3.6), ("llama-8b", 8.0), ("llama-70b", 70.6)):
        with torch.device("meta"):  # untied, as grown models are
            model = LlamaForCausalLM(LlamaConfig(**PRESETS[name].config_fields()))
        assert sum(p.numel() for p in model.parameters()) / 1e9 == pytest.approx(billions, rel=0.01)
    assert parse_geometry("llama-8b,layers=2") == Geometry(4096, 2, 32, 8, 128, 14336, 128256)


@pytest.mark.parametrize("text", ["llama-9b", "layer=3", "layers=0", "layers=-2", "layers=two", "llama-1b,layers", ""])
def test_unreadable_geometries(text):
    with pytest.raises(LossyValueError, match=rf"`--grow`.*'{text.removeprefix('llama-1b,')}'"):
        parse_geometry(text)


@pytest.mark.parametrize(
    ("geometry", "message"),
    [
        ("layers=1", "`layers` of a grown model has to be >= 2"),
        ("hidden=70,heads=8", "`heads` of a grown model has to divide its `hidden` 70"),
        ("heads=8,kv_heads=5,hidden=64", "`kv_heads` of a grown model has to divide its `heads` 8"),
        ("head_dim=20", "`head_dim` of a grown model has to be a multiple of 8, but is 20"),
        ("heads=4,kv_heads=4,vocab=80", "`hidden` of a grown model has to be >= 96 where `vocab` grows"),
        ("llama-70b,layers=80", "GiB, but only 1.0 GiB are free on 'cpu'"),  # before it is made
    ],
)
def test_sizes_that_do_not_go_together_or_do_not_fit(geometry, message, monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: types.SimpleNamespace(available=2**30))
    with pytest.raises(LossyValueError, match=message):
        grow(llama(), parse_geometry(geometry))


YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    "model",
    [
        lambda: tiny("gpt2"), lambda: tiny("mistral"), lambda: llama(rope_parameters=YARN),
        lambda: llama(num_key_value_heads=2), lambda: llama(tie_word_embeddings=False), lambda: llama(mlp_bias=True),
    ],
)  # fmt: skip
def test_models_that_are_built_otherwise_are_refused(model):
    with pytest.raises(LossyUnsupportedError, match="like those of the bundled pair"):
        grow(model(), Geometry(layers=4))
