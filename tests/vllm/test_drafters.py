"""Every way of drafting that this build of vLLM has; n-gram drafts have no distribution."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from hf_lossy_assist.integrations.vllm.inside import sampler
from tests.vllm.asking import answers, asking, prompts_of, texts
from tests.vllm.conftest import GAMMA, ROOT, start

LOOKUP = {"method": "ngram", "num_speculative_tokens": GAMMA, "prompt_lookup_max": 3, "prompt_lookup_min": 1}


@pytest.fixture(scope="module")
def eagle3(tmp_path_factory) -> dict[str, Any]:
    """A random head for the bundled target, as vLLM reads it."""
    folder = tmp_path_factory.mktemp("eagle3")
    config = json.loads((ROOT / "target" / "config.json").read_text())
    d, m, kv = config["hidden_size"], config["intermediate_size"], config["num_key_value_heads"] * config["head_dim"]
    generator = torch.Generator().manual_seed(0)
    shapes = {"fc": (d, 3 * d), "lm_head": (config["vocab_size"], d)}
    layer = {f"self_attn.{name}_proj": (size, 2 * d) for name, size in {"q": d, "k": kv, "v": kv}.items()}
    layer |= {"self_attn.o_proj": (d, d), "mlp.gate_proj": (m, d), "mlp.up_proj": (m, d), "mlp.down_proj": (d, m)}
    shapes |= {f"midlayer.{name}": shape for name, shape in layer.items()}
    weights = {f"{name}.weight": 0.1 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    norms = ("norm", "midlayer.hidden_norm", "midlayer.input_layernorm", "midlayer.post_attention_layernorm")
    weights |= {f"{name}.weight": torch.ones(d) for name in norms}
    save_file(weights, folder / "model.safetensors")
    config |= {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps({**config, "draft_vocab_size": config["vocab_size"]}))
    return {"method": "eagle3", "model": str(folder), "num_speculative_tokens": 3}


@pytest.mark.parametrize("method", ["ngram", "eagle3"])
def test_lossless_texts_are_the_engine_s_own_and_lossy_ones_are_not(method: str, request, pair, monkeypatch):
    config = LOOKUP if method == "ngram" else request.getfixturevalue("eagle3")
    engine, prompts = start({"lossy": {}}, speculative_config=config), prompts_of(pair)
    assert texts(engine, prompts, asking("lossless")) == texts(engine, prompts, asking())
    seen = []
    decide = sampler.decide_group
    monkeypatch.setattr(sampler, "decide_group", lambda *args: seen.append(args[1]) or decide(*args))
    outputs = [x.outputs[0] for x in answers(engine, prompts, asking("topk", {"k": 8}))]
    assert sum(output.spec_decode_metrics.lossy["accepted_lossy"] for output in outputs) > 0
    assert all(step.draft_probs is None for step in seen), "no probabilities were asked for"
    with pytest.raises(ValueError, match="draft_sample_method"):
        texts(engine, prompts, asking("fsd"))
