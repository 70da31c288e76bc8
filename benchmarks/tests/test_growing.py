"""Grown models compute what the small ones compute, with their heads."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import hf_lossy_assist
from benchmarks.gpu.growing import PRESETS, Geometry, grow, grow_pair
from hf_lossy_assist import JudgeHead, pairs
from hf_lossy_assist.heads import JudgeConfig, ModelIdentity
from tests.tiny_models import VOCAB, noisy_copy, prompt

SIZES = [
    {"hidden": 48, "layers": 5},
    {"hidden": 64, "heads": 8, "kv_heads": 8, "intermediate": 77},
    {"hidden": 96, "heads": 12, "kv_heads": 4, "layers": 3, "vocab": VOCAB},
    {"hidden": 160, "heads": 16, "kv_heads": 4, "head_dim": 16, "vocab": 100},
]


def wider(model, **sizes):
    """Return a model's geometry with other sizes."""
    names = {"layers": "num_hidden_layers", "heads": "num_attention_heads", "kv_heads": "num_key_value_heads"}
    own = {names.get(key, key if key == "head_dim" else f"{key}_size"): value for key, value in sizes.items()}
    return dataclasses.replace(Geometry.of(model.config), **own)


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


@pytest.mark.parametrize("sizes", SIZES)
def test_logits_are_those_of_the_small_model(sizes):
    model, ids = llama(), prompt(24)
    before = copy.deepcopy(model.state_dict())
    grown = grow(model, wider(model, **sizes))
    said, wanted = logits(grown, ids), logits(model, ids)
    torch.testing.assert_close(said[..., :VOCAB], wanted, rtol=1e-4, atol=2e-4)
    assert not (said[..., VOCAB:] > wanted.amin(-1, keepdim=True) - 100).any()
    assert Geometry.of(grown.config) == wider(model, **sizes)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])


@pytest.mark.parametrize("sizes", [
    {"hidden": 576, "heads": 9, "kv_heads": 9, "head_dim": 64, "intermediate": 1024},
    {"hidden": 512, "heads": 16, "layers": 7, "vocab": 1100},
])  # fmt: skip
def test_the_bundled_target_says_the_same_when_it_is_large(bundled, sizes):
    grown = grow(bundled.target, wider(bundled.target, **sizes))
    for example in bundled.task.examples("test", 2):
        ids = bundled.tokenizer(example.prompt + example.solution, return_tensors="pt")["input_ids"]
        said, wanted = logits(grown, ids), logits(bundled.target, ids)
        assert said.argmax(-1).tolist() == wanted.argmax(-1).tolist()
        assert (said[..., : wanted.shape[-1]] - wanted).abs().max() < 2e-4
    ids = bundled.tokenizer(bundled.task.examples("test", 1)[0].prompt, return_tensors="pt")
    alone, large = (m.generate(**ids, do_sample=False, max_new_tokens=20) for m in (bundled.target, grown))
    assert large.tolist() == alone.tolist()


def test_padded_tokens_are_never_chosen():
    ids, model = prompt(9), llama()
    with torch.no_grad():  # so that all logits are far below 0
        model.model.embed_tokens.weight.mul_(0.5).add_(1.0)
        model.model.norm.weight.fill_(-3.0)
    wanted = logits(model, ids)[0, -1]
    assert (wanted < -10).all()
    grown = grow(model, wider(model, hidden=128, head_dim=32, vocab=5000))
    said = logits(grown, ids)[0, -1]
    assert said.argmax() == wanted.argmax()
    assert (said / 2).softmax(-1)[VOCAB:].sum() == 0
    # Nor by heads that do not see a part of the state.
    with torch.no_grad():
        state = grown.model(input_ids=ids).last_hidden_state[0, -1]
        masks = torch.empty(200, 128).bernoulli_(0.5, generator=torch.Generator().manual_seed(0)) * 2
        assert (grown.lm_head(state * masks).argmax(-1) < VOCAB).all()
    half = grow(model.bfloat16(), wider(model, hidden=128, head_dim=32, vocab=5000))
    assert half.dtype == torch.bfloat16
    assert logits(half, ids)[0, -1].argmax() < VOCAB
    assert (logits(half, ids).isfinite()).all()


def test_padding_that_is_never_seen_is_not_zero():
    grown = grow(model := llama(), wider(model, layers=4, hidden=64, head_dim=16, intermediate=96))
    added = grown.model.layers[3]
    seen = [x.weight for x in (added.self_attn.q_proj, added.self_attn.v_proj, added.mlp.gate_proj, added.mlp.up_proj)]
    for weight in (*seen, grown.model.layers[0].mlp.up_proj.weight[48:]):
        assert weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert not added.self_attn.o_proj.weight.any()
    assert not added.mlp.down_proj.weight.any()


def test_presets_are_the_published_sizes():
    assert PRESETS["llama-8b"] == Geometry(4096, 32, 32, 8, 128, 14336, 128256)
    for name, billions in (("llama-1b", 1.5), ("llama-8b", 8.0), ("llama-70b", 70.6)):
        with torch.device("meta"):  # untied, as grown models are
            model = LlamaForCausalLM(LlamaConfig(**dataclasses.asdict(PRESETS[name])))
        assert sum(p.numel() for p in model.parameters()) / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.fixture(scope="module")
def small():
    target = llama(num_hidden_layers=1)
    pair = pairs.Pair(target, noisy_copy(target, 0.05), None, None)
    owners = {role: ModelIdentity.of(getattr(pair, role)) for role in ("target", "draft")}
    config = JudgeConfig(**owners, task="none", threshold=0.5, models="both", positions="both")
    weight = torch.randn(config.width, generator=torch.Generator().manual_seed(0))
    return dataclasses.replace(pair, heads={"judge": JudgeHead(config, weight, 0.0)})


@pytest.fixture(scope="module")
def large(small):
    sizes = {"hidden": 96, "heads": 12, "kv_heads": 4, "vocab": 100}
    return grow_pair(small, wider(small.target, **sizes), wider(small.draft, hidden=128, head_dim=32, vocab=100))


def test_a_judged_run_of_grown_models_is_that_of_the_small_ones(small, large):
    runs = []
    for models in (small, large):
        hf_lossy_assist.enable(models.target)
        judged = {"lossy_mode": "judge", "lossy_head": models.heads["judge"], "num_assistant_tokens": 4}
        judged |= {"assistant_model": models.draft, "do_sample": False, "max_new_tokens": 24, "pad_token_id": 0}
        ids = models.target.generate(prompt(8), **judged)
        runs.append((ids.tolist(), hf_lossy_assist.last_stats(models.target)))
    assert runs[1][0] == runs[0][0]
    assert runs[1][1].trace == runs[0][1].trace
    assert runs[0][1].accepted_lossy > 0
