"""Drafts made from their target."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from benchmarks.made_drafts import app, drop_layers, round_weights
from hf_lossy_assist.errors import LossyUnsupportedError, LossyValueError
from tests.benchmarks.running import run
from tests.parity import assert_same_text
from tests.tiny_models import ARCHITECTURES, constant, prompt, tiny

GREEDY = {"do_sample": False, "return_dict_in_generate": True, "output_logits": True, "max_new_tokens": 20}


def logits(model, ids=None):
    with torch.no_grad():
        return model(input_ids=prompt(20) if ids is None else ids).logits


@pytest.fixture(params=ARCHITECTURES)
def target(request):
    model = tiny(request.param)
    before = copy.deepcopy((model.state_dict(), model.config.to_dict(), logits(model)))
    yield model
    state, config, said = before
    assert model.config.to_dict() == config
    assert torch.equal(logits(model), said)
    for key, value in model.state_dict().items():
        assert torch.equal(value, state[key]), f"{key} of the target changed"


def test_dropping_no_layer_changes_nothing(target):
    assert torch.equal(logits(drop_layers(target, [0, 1])), logits(target))


@pytest.mark.parametrize("keep", [[0], [1]])
def test_what_is_left_is_the_model_of_those_layers(target, keep, tmp_path):
    draft = drop_layers(target, keep)
    assert not torch.allclose(logits(draft), logits(target))
    assert draft.config.num_hidden_layers == 1
    # Saved and loaded, it is built anew from its configuration, so nothing of the old model is left in it.
    draft.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert AutoConfig.from_pretrained(tmp_path).num_hidden_layers == 1
    torch.testing.assert_close(logits(loaded), logits(draft), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", [lambda m: drop_layers(m, [1]), lambda m: round_weights(m, 4)], ids=["drop", "round"])
def test_made_drafts_draft(target, make):
    draft = make(target)
    plain = target.generate(input_ids=prompt(), eos_token_id=None, **GREEDY)
    ours = target.generate(
        input_ids=prompt(), eos_token_id=None, assistant_model=draft, lossy_mode="lossless", **GREEDY
    )
    assert_same_text(ours.sequences, plain)
    # The draft's own cached steps are its parallel forward: its cache works.
    alone = draft.generate(input_ids=prompt(), eos_token_id=None, **GREEDY)
    stepwise = torch.stack(alone.logits, dim=1)
    parallel = logits(draft, alone.sequences)[:, prompt().shape[1] - 1 : -1]
    torch.testing.assert_close(stepwise, parallel, rtol=1e-4, atol=1e-4)


def test_a_dropped_draft_shares_the_target_s_memory(target):
    own = {p.data_ptr() for p in target.parameters()}
    assert {p.data_ptr() for p in drop_layers(target, [1]).parameters()} < own


def test_fewer_bits_mean_larger_errors(target):
    said = logits(target)
    errors = {bits: (logits(round_weights(target, bits)) - said).abs().mean().item() for bits in (2, 3, 4, 8, 16)}
    assert list(errors.values()) == sorted(errors.values(), reverse=True)
    assert errors[16] < 1e-3 * said.abs().mean()
    assert errors[3] > 0.03 * said.abs().mean()


@pytest.mark.parametrize(
    ("architecture", "path"), [("llama", "model.layers.0.mlp.up_proj"), ("gpt2", "transformer.h.0.mlp.c_fc")]
)
def test_every_output_channel_has_its_own_levels(architecture, path):
    target = tiny(architecture)
    before, after = (m.get_submodule(path).weight.detach() for m in (target, round_weights(target, 3)))
    if architecture == "gpt2":  # stores its weights (in, out)
        before, after = before.T, after.T
    for channel, rounded in zip(before, after, strict=True):
        step = channel.abs().max() / 3
        torch.testing.assert_close(rounded / step, (rounded / step).round(), rtol=0, atol=1e-5)
        assert ((rounded - channel).abs() <= step / 2 + 1e-6).all()
        assert rounded.unique().numel() <= 7


def test_the_output_head_keeps_its_precision():
    target = tiny("gpt_neox")
    assert round_weights(target, 2).get_output_embeddings().weight is target.get_output_embeddings().weight


@pytest.mark.parametrize("keep", [[], [2], [-1], [1, 0], [0, 0]])
def test_impossible_layers(keep):
    with pytest.raises(LossyValueError, match="`keep`"):
        drop_layers(tiny(), keep)


@pytest.mark.parametrize("bits", [1, 17, 4.0, True])
def test_impossible_bits(bits):
    with pytest.raises(LossyValueError, match="`bits`"):
        round_weights(tiny(), bits)


def test_a_model_without_layers():
    with pytest.raises(LossyUnsupportedError, match="no list of its 1 layers"):
        drop_layers(constant([0.5, 0.5]), [0])


def test_a_draft_in_a_folder(tiny_pair_folder, tmp_path):
    target = tiny_pair_folder / "target"
    run(app, "--model", target, "--draft-layers", "0", "--out", tmp_path / "same")
    run(app, "--model", target, "--draft-bits", "3", "--out", tmp_path / "rounded")
    own, same, rounded = (
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        for path in (target, tmp_path / "same", tmp_path / "rounded")
    )
    ids = torch.tensor([[1, 5, 9, 7]])
    # The target has one layer, so a draft of that layer is the target.
    assert torch.equal(logits(same, ids), logits(own, ids))
    levels = [m.model.layers[0].mlp.up_proj.weight[0].unique().numel() for m in (own, rounded)]
    assert levels[0] > 7 >= levels[1]
    assert AutoTokenizer.from_pretrained(tmp_path / "rounded").vocab_size == own.config.vocab_size


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--draft-bits", "4"), "either `--model` or `--pair`"),
        (("--model", "x"), "`--draft-layers` or `--draft-bits`"),
        (("--model", "/nowhere/at/all", "--draft-bits", "4"), "'/nowhere/at/all'"),
        (("--model", "TARGET", "--draft-layers", "0;1"), "'0;1'"),
        (("--model", "TARGET", "--draft-layers", "3"), "`keep`"),
        (("--model", "TARGET", "--draft-bits", "1"), "`bits`"),
        (("--pair", "arithmetics", "--draft-bits", "4"), "'arithmetics'"),
    ],
    ids=lambda value: None if isinstance(value, str) else " ".join(value),
)
def test_errors_are_one_line(tiny_pair_folder, tmp_path, arguments, message):
    arguments = [tiny_pair_folder / "target" if argument == "TARGET" else argument for argument in arguments]
    *_, line = run(app, *arguments, "--out", tmp_path, status=2).stderr.splitlines()  # models that load show a bar
    assert line.startswith("error: ")
    assert message in line
