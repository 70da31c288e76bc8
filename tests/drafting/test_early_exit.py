"""A model's first layers draft for it, and the model stays as it is."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hf_lossy_assist import LossyError
from hf_lossy_assist.drafting.early_exit import first_layers
from tests.parity import assert_lossless
from tests.tiny_models import _COMMON, ARCHITECTURES, padded, prompt, tiny

GREEDY = {"do_sample": False, "max_new_tokens": 30, "eos_token_id": None, "return_dict_in_generate": True}


@torch.no_grad()
def easy(architecture: str = "llama"):
    """Return a model whose last layer changes little."""
    model = tiny(architecture)
    layers = next(x for x in model.base_model.children() if isinstance(x, torch.nn.ModuleList))
    for parameter in layers[-1].parameters():
        if parameter.dim() > 1:
            parameter *= 0.3
    return model


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_lossless_parity(architecture: str):
    model = easy(architecture)
    config = model.config.to_dict()
    _, ours = assert_lossless(model, {"assistant_early_exit": 1}, input_ids=prompt(), **GREEDY)
    assert ours.lossy_stats.accepted > 0
    assert model.config.to_dict() == config


def test_batches_and_lossy_rules():
    model = easy()
    assert_lossless(model, {"assistant_early_exit": 1}, **padded(), **GREEDY)
    drawn = padded() | GREEDY | {"do_sample": True, "num_return_sequences": 2}
    for mode in ("dropmatch", "ears", "topk"):
        found = []
        for drafts in ({"assistant_early_exit": 1}, {"assistant_model": first_layers(model, 1)}):
            torch.manual_seed(0)
            found.append(model.generate(**drawn, **drafts, lossy_mode=mode, num_assistant_tokens=4))
        early, view = found
        assert early.sequences.tolist() == view.sequences.tolist(), "the first layers draft, and q is theirs"
        assert early.lossy_stats.accepted == view.lossy_stats.accepted > 0
        assert early.lossy_stats.draft_calls == view.lossy_stats.draft_calls > early.lossy_stats.target_calls


@torch.no_grad()
def test_the_view_computes_what_the_layers_compute():
    model = LlamaForCausalLM(LlamaConfig(**(_COMMON | {"num_hidden_layers": 4}))).eval()
    states = model(input_ids=prompt(), output_hidden_states=True).hidden_states
    view = first_layers(model, 2)
    expected = model.lm_head(model.model.norm(states[2]))
    torch.testing.assert_close(view(input_ids=prompt()).logits, expected)
    assert len(model.model.layers) == model.config.num_hidden_layers == 4
    assert view.lm_head is model.lm_head


def test_a_failure_leaves_the_model_as_it_was():
    model = easy()
    with pytest.raises(RuntimeError, match="boom"):
        model.generate(
            input_ids=prompt(), **GREEDY, assistant_early_exit=1, lossy_mode="lossless",
            logits_processor=[lambda ids, scores: (_ for _ in ()).throw(RuntimeError("boom"))],
        )  # fmt: skip
    assert model.config.num_hidden_layers == len(model.model.layers) == 2


@pytest.mark.parametrize("layers", [2, True, "1"])
def test_refused(layers):
    with pytest.raises(LossyError, match="assistant_early_exit"):
        tiny("llama").generate(input_ids=prompt(), **GREEDY, assistant_early_exit=layers, lossy_mode="lossless")


@pytest.mark.parametrize("in_files", [False, True])
def test_another_drafter_beside_it_is_refused_before_any_forward(in_files):
    model, draft = tiny("llama"), tiny("llama")
    given = {"assistant_model": draft, "assistant_early_exit": 1}
    if in_files:
        model.generation_config.assistant_early_exit = given.pop("assistant_early_exit")
    for each in (model, draft):
        each.register_forward_pre_hook(lambda *_: pytest.fail("a forward ran"))
    with pytest.raises(LossyError, match=r"`assistant_early_exit` 1 .* `assistant_model`.* leave out either") as raised:
        model.generate(input_ids=prompt(), **GREEDY, **given, lossy_mode="lossless")
    assert ("pass `assistant_early_exit=None`" in str(raised.value)) is in_files


def test_a_keyword_of_none_leaves_the_draft_to_the_other_drafter():
    model, draft = easy(), easy()
    plain = model.generate(prompt(), **GREEDY)  # with the file's value, transformers 5.14 fails
    model.generation_config.assistant_early_exit = 1
    drafting = {"assistant_model": draft, "assistant_early_exit": None}
    ours = model.generate(prompt(), **GREEDY, **drafting, lossy_mode="lossless")
    assert torch.equal(ours.sequences, plain.sequences)
    assert ours.lossy_stats.accepted == ours.lossy_stats.drafted
