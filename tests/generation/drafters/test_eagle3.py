"""EAGLE-3 heads: their logits are those of speculators, whoever wrote the checkpoint."""

from __future__ import annotations

import importlib.util
import json

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import embedding

from hf_lossy_assist import Eagle3, LossyUnsupportedError, LossyValueError
from tests.eagle3_heads import layer, legacy_values, random_head, write_legacy
from tests.tiny_models import VOCAB, prompt, tiny

LENGTH, STEPS = 11, 4
needs_oracle = pytest.mark.skipif(
    importlib.util.find_spec("speculators") is None, reason="the package `speculators` is not installed"
)
CONVENTIONS = {
    "plain": {},
    "norm_before_residual": {"norm_before_residual": True},
    "norm_before_fc": {"norm_before_fc": True},
    "fc_norm": {"fc_norm": True},
    "norm_output": {"norm_output": True},
    "all": {"norm_before_residual": True, "fc_norm": True, "norm_output": True},
}


def text_and_states(layers: int = 3):
    generator = torch.Generator().manual_seed(3)
    return (
        torch.randint(VOCAB, (1, LENGTH + STEPS), generator=generator),
        torch.randn(1, LENGTH, layers * 32, generator=generator),
    )


@torch.no_grad()
def unrolled(head: Eagle3) -> torch.Tensor:
    """``(STEPS, LENGTH, V_draft)`` logits of every position's drafted tokens, each from a cache of its own."""
    ids, read = text_and_states(head.config.layers_read)
    g, embeds = head.fuse(read), embedding(ids, head.embed_tokens.weight)
    rows = []
    for length in range(1, LENGTH + 1):
        cache, positions = head.new_cache(), torch.arange(length)[None]
        causal = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
        states = head(embeds[:, :length], g[:, :length], positions, causal, cache)[:, -1:]
        row = [head.logits(states)]
        for step in range(STEPS - 1):
            at = length + step
            states = head(embeds[:, at : at + 1], states, torch.tensor([[at]]), None, cache)
            row.append(head.logits(states))
        rows.append(torch.cat(row))
    return torch.cat(rows, dim=1)


@torch.no_grad()
def oracle(folder) -> torch.Tensor:
    """The scores that the package speculators computes from a checkpoint in its format."""
    from speculators.models.eagle3 import Eagle3SpeculatorConfig
    from speculators.models.eagle3.core import Eagle3DraftModel

    config = Eagle3SpeculatorConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    model = Eagle3DraftModel(config).eval()
    missing, unexpected = model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    assert not unexpected
    assert set(missing) <= {"verifier_lm_head.weight", "verifier_norm.weight"}
    ids, read = text_and_states(len(config.eagle_aux_hidden_state_layer_ids))
    logits = []
    model.lm_head.register_forward_hook(lambda module, args, out: logits.append(out[:, :LENGTH]))
    # Its unrolled steps read the given text; what is behind the last position does not reach the ones compared.
    pad = torch.zeros(1, STEPS, read.shape[-1])
    model(torch.cat([read, pad], dim=1), ids, torch.zeros_like(ids), ttt_steps=STEPS)
    return torch.cat(logits)


def through_own_format(head, folder):
    head.save_pretrained(folder)
    return Eagle3.from_pretrained(folder)


@needs_oracle
@pytest.mark.parametrize("conventions", CONVENTIONS)
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_logits_are_those_of_speculators(kind, conventions, tmp_path):
    head = random_head(layer(kind, attention_bias=kind == "qwen3"), **CONVENTIONS[conventions])
    loaded = through_own_format(head, tmp_path)
    expected = oracle(tmp_path)
    assert expected.std() > 0.1
    torch.testing.assert_close(unrolled(loaded), expected, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(unrolled(head), unrolled(loaded), atol=0, rtol=0)


@needs_oracle
def test_several_layers_and_other_states_are_read_too(tmp_path):
    head = random_head(layer(num_hidden_layers=2), target_layers=(0, 2))
    torch.testing.assert_close(unrolled(through_own_format(head, tmp_path)), oracle(tmp_path), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize(("specforge", "binary"), [(False, True), (False, False), (True, False), (True, True)])
def test_checkpoints_of_other_tools_give_the_same_logits(specforge, binary, tmp_path):
    head = random_head(target_layers=(1, 2, 3))
    loaded = Eagle3.from_pretrained(write_legacy(head, tmp_path, specforge=specforge, binary=binary))
    torch.testing.assert_close(unrolled(loaded), unrolled(head), atol=0, rtol=0)
    assert torch.equal(loaded.target_ids, head.target_ids)


def test_layers_are_numbered_as_each_tool_numbers_them(tmp_path):
    deep = tiny("llama")
    deep.config.num_hidden_layers = 12
    head = random_head(target_layers=(2, 6, 9))
    specforge = Eagle3.from_pretrained(write_legacy(head, tmp_path / "a", specforge=True))
    assert specforge.config.layers_of(deep) == (2, 6, 9)
    safeailab = Eagle3.from_pretrained(write_legacy(head, tmp_path / "b", specforge=False))
    assert safeailab.config.target_layers is None
    assert safeailab.config.layers_of(deep) == (2, 6, 9)
    assert through_own_format(head, tmp_path / "c").config.layers_of(deep) == (2, 6, 9)


def test_flags_are_read_wherever_a_checkpoint_has_them(tmp_path):
    head = random_head(norm_before_residual=True, norm_output=True)
    folder = write_legacy(head, tmp_path, specforge=True)
    values = legacy_values(head, specforge=True)
    values["norm_output"] = True
    values["eagle_config"]["norm_before_residual"] = True
    (folder / "config.json").write_text(json.dumps(values))
    loaded = Eagle3.from_pretrained(folder)
    torch.testing.assert_close(unrolled(loaded), unrolled(head), atol=0, rtol=0)


def _as_binary(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return folder / "pytorch_model.bin"


def edited(folder, lacking, added):
    """Change the tensors of a checkpoint, and return its folder."""
    path = _as_binary(folder)
    tensors = {name: x for name, x in torch.load(path, weights_only=True).items() if name not in lacking}
    torch.save(tensors | added, path)
    return folder


def test_without_a_map_every_token_is_its_own(tmp_path):
    folder = write_legacy(random_head(drafted=VOCAB), tmp_path, specforge=False)
    loaded = Eagle3.from_pretrained(edited(folder, {"d2t", "t2d"}, {}))
    assert loaded.target_ids.tolist() == list(range(VOCAB))


@pytest.mark.parametrize(
    ("lacking", "added", "named"),
    [
        ({"d2t"}, {}, "d2t"),
        ({"midlayer.hidden_norm.weight"}, {}, "layers.0.hidden_norm.weight"),
        ({}, {"midlayer.self_attn.q_norm.weight": torch.ones(8)}, "layers.0.self_attn.q_norm.weight"),
        ({}, {"fc.weight": torch.ones(32, 64)}, "fc.weight"),
    ],
    ids=["no map", "missing", "unknown", "shape"],
)
def test_other_weights_than_the_configuration_says_are_named(lacking, added, named, tmp_path):
    folder = edited(write_legacy(random_head(), tmp_path, specforge=named != "d2t"), lacking, added)
    with pytest.raises(LossyValueError, match=named):
        Eagle3.from_pretrained(folder)


def test_nothing_in_a_binary_file_is_executed(tmp_path):
    folder = write_legacy(random_head(), tmp_path, specforge=False)
    _as_binary(folder)

    class Harm:
        def __reduce__(self):
            return exec, (f"open({str(tmp_path / 'harm')!r}, 'w')",)

    torch.save({"fc.weight": Harm()}, folder / "pytorch_model.bin")
    with pytest.raises(LossyValueError, match=r"pytorch_model\.bin.* holds more than tensors"):
        Eagle3.from_pretrained(folder)
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_weights_that_are_cut_short_are_named(name, tmp_path):
    path = write_legacy(random_head(), tmp_path, specforge=False, binary=name.endswith("bin")) / name
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(LossyValueError, match=f"{name}' is cut short"):
        Eagle3.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 32}, "'vocab_size'"),
        ({"speculators_model_type": "eagle3", "transformer_layer_config": {}}, "'draft_vocab_size'"),
        *(({"architectures": [name]}, "is no EAGLE-3 head") for name in ("GPT2LMHeadModel", "LlamaForCausalLM")),
        ({}, "is no EAGLE-3 head"),
    ],
)
def test_configurations_that_are_none_of_a_head_or_lack_something(values, named, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(LossyValueError, match=named):
        Eagle3.from_pretrained(tmp_path)


def test_a_head_without_embeddings_is_saved_without(tmp_path):
    head = random_head(own_embeddings=False)
    loaded = through_own_format(head, tmp_path)
    assert loaded.embed_tokens is None
    assert loaded.state_dict().keys() == head.state_dict().keys()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"target_hidden_size": 48}, "48.* 32"),
        ({"target_layers": (0, 1, 3)}, r"\[0, 1, 3\].* 2 layers"),
        ({"target_layers": None}, r"\[2, 1, -1\].* 2 layers"),
        ({"config": layer(vocab_size=4096)}, "4096.* 64"),
        ({"config": layer(vocab_size=72), "drafted": 72}, "71.* 64"),
        ({"config": layer(hidden_size=16), "own_embeddings": False}, "32.* 16"),
    ],
)
def test_a_head_of_another_target_is_refused_with_what_differs(values, message):
    head = random_head(**values)
    with pytest.raises(LossyValueError, match=message):
        head.check(tiny("llama"))
    with pytest.raises(LossyValueError, match=message):
        tiny("llama").generate(prompt(), assistant_model=head, lossy_mode="lossless", max_new_tokens=4)


def test_sliding_windows_and_other_layers_are_refused():
    with pytest.raises(LossyUnsupportedError, match="full attention"):
        random_head(layer("qwen3", layer_types=["sliding_attention"], use_sliding_window=True, sliding_window=8))


def test_the_card_says_what_the_head_is(tmp_path):
    random_head(target_name="org/target").save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert "base_model: org/target" in card
    assert "drafts 24 of 64 tokens" in card
