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
from hf_lossy_assist.compat.caches import CACHE
from hf_lossy_assist.errors import LossyUnsupportedError, LossyValueError
from tests.tiny_models import VOCAB, prompt, tiny

SMALL = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.2, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip

MODELS = {
    "grouped": lambda: tiny("llama"),
    "sliding window": lambda: tiny("mistral"),
    "tied": lambda: llama(tie_word_embeddings=True),
    "one key head": lambda: llama(num_key_value_heads=1),
    "biases": lambda: with_biases(llama(attention_bias=True, mlp_bias=True)),
    "llama3 frequencies": lambda: llama(
        rope_parameters={
            "rope_type": "llama3", "rope_theta": 5e3, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    ),
}  # fmt: skip

GEOMETRIES = [
    "layers=5",
    "hidden=40",
    "intermediate=77",
    "head_dim=24",
    "head_dim=20",
    "hidden=64,heads=8,kv_heads=8",
    "hidden=96,heads=12,kv_heads=4,layers=3",
    "heads=16,kv_heads=2,hidden=160,vocab=100",
    "heads=6,kv_heads=6,hidden=36",
]


def llama(**options):
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**{**SMALL, **options})).eval()


def with_biases(model):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.3)
    return model


@torch.no_grad()
def logits(model, ids):
    return model(input_ids=ids).logits


@torch.no_grad()
def step_by_step(model, ids):
    """Logits of every position, one token at a time through the cache."""
    cache, said = None, []
    for i in range(ids.shape[1]):
        out = model(input_ids=ids[:, i : i + 1], **{CACHE: cache}, use_cache=True)
        cache = getattr(out, CACHE)
        said.append(out.logits)
    return torch.cat(said, dim=1)


@pytest.fixture(scope="module")
def bundled():
    return pairs.load("arithmetic")


# One model grows into every geometry, and every model into those that change several sizes at once.
GROWN = [(name, geometry) for name in MODELS for geometry in GEOMETRIES if name == "grouped" or "," in geometry]


@pytest.mark.parametrize(("name", "geometry"), GROWN)
def test_logits_are_those_of_the_small_model(name, geometry):
    model, ids = MODELS[name](), prompt(24)
    before = copy.deepcopy(model.state_dict())
    grown = grow(model, parse_geometry(geometry))
    wanted = logits(model, ids)
    for said in (logits(grown, ids), step_by_step(grown, ids)):
        assert said[..., :VOCAB].argmax(-1).tolist() == wanted.argmax(-1).tolist()
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


def negative_model(ids):
    """A model all of whose logits are far below 0 after ``ids``."""
    model = llama()
    with torch.no_grad():
        state = model.model(input_ids=ids).last_hidden_state[0, -1]
        noise = torch.rand(VOCAB, 1, generator=torch.Generator().manual_seed(0))
        model.lm_head.weight.copy_(-(5 + noise) * state / state.norm())
    assert (logits(model, ids)[0, -1] < -10).all()
    return model


def test_padded_tokens_are_never_chosen(bundled):
    ids = prompt(9)
    model = negative_model(ids)
    grown = grow(model, parse_geometry("hidden=128,vocab=5000"))
    said = logits(grown, ids)[0, -1]
    assert said.argmax() == logits(model, ids)[0, -1].argmax()
    assert (said / 2).softmax(-1)[VOCAB:].sum() == 0
    # Nor by heads that do not see a part of the state.
    with torch.no_grad():
        state = grown.model(input_ids=ids).last_hidden_state[0, -1]
        masks = torch.empty(200, 128).bernoulli_(0.5, generator=torch.Generator().manual_seed(0)) * 2
        assert (grown.lm_head(state * masks).argmax(-1) < VOCAB).all()
    half = grow(model, parse_geometry("hidden=128,vocab=5000"), dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16
    assert logits(half, ids)[0, -1].argmax() < VOCAB
    assert (logits(half, ids).isfinite()).all()


def test_a_grown_model_survives_saving(tmp_path):
    grown = grow(tiny("llama"), parse_geometry("hidden=128,head_dim=20,layers=3,vocab=90"))
    grown.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    ids = prompt(20)
    assert torch.equal(logits(loaded, ids), logits(grown, ids))


def test_padding_that_is_never_seen_is_not_zero():
    grown = grow(tiny("llama"), parse_geometry("layers=4,hidden=64,intermediate=96"))
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
        ("heads=8,kv_heads=3", "`kv_heads` of a grown model has to divide its `heads` 8"),
        ("heads=4,kv_heads=2,vocab=80", "`hidden` of a grown model has to be >= 96 where `vocab` grows"),
        ("llama-70b,layers=80", "GiB, but only 1.0 GiB are free on 'cpu'"),  # before it is made
    ],
)
def test_sizes_that_do_not_go_together_or_do_not_fit(geometry, message, monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: types.SimpleNamespace(available=2**30))
    with pytest.raises(LossyValueError, match=message):
        grow(tiny("llama"), parse_geometry(geometry))


def test_heads_that_can_t_be_placed():
    """Three query heads share a key head; where only two may, each needs two, and four do not fit into three."""
    model = llama(num_attention_heads=6, num_key_value_heads=2, hidden_size=48)
    with pytest.raises(LossyValueError, match=r"`kv_heads` of a grown model has to be >= 4 with 6 heads.*but is 3"):
        grow(model, Geometry(heads=6, kv_heads=3))
    ids = prompt(20)
    torch.testing.assert_close(logits(grow(model, Geometry(heads=12, kv_heads=6)), ids), logits(model, ids))


def test_other_architectures_and_frequencies_are_refused():
    with pytest.raises(LossyUnsupportedError, match="'gpt2'"):
        grow(tiny("gpt2"), Geometry(layers=4))
    yarn = llama(
        rope_parameters={
            "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64,
        }
    )  # fmt: skip
    with pytest.raises(LossyUnsupportedError, match=r"'yarn'.*leave `head_dim` as it is"):
        grow(yarn, Geometry(head_dim=16))
    ids = prompt(30)
    grown = grow(yarn, Geometry(hidden=64, heads=8, head_dim=8, layers=3))
    torch.testing.assert_close(logits(grown, ids), logits(yarn, ids), rtol=1e-4, atol=1e-4)
