"""A target's forward gets the inputs that transformers itself would send."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import DynamicCache
from transformers.generation import candidate_generator as stock
from transformers.modeling_outputs import CausalLMOutputWithPast

from hf_lossy_assist.compat.caches import CACHE
from hf_lossy_assist.compat.inputs import ForwardInputs, PlainForwardInputs, forward_inputs
from tests.architectures import family
from tests.parity import assert_lossless
from tests.tiny_models import noisy_copy, prompt, prompts, tiny

KINDS = (ForwardInputs, PlainForwardInputs)
MASKS = {"none": None, "padded": torch.tensor([[0, 0, 1, 1, 1, 1, 1]])}


def carried(mask=None, **more):
    """Return what ``generate()`` hands over for a prompt of seven tokens."""
    return {
        "attention_mask": mask,
        "position_ids": torch.arange(7)[None] if mask is None else (mask.cumsum(-1) - 1).clamp(min=0),
        CACHE: DynamicCache(),
        "use_cache": True,
        "logits_to_keep": 1,
        **more,
    }


def naive(model, ids, kwargs, drafted, new):
    """Prepare a forward as stock's loop does, from masks and positions that are put together each time."""
    kwargs = {name: value for name, value in kwargs.items() if value is not None}
    length = ids.shape[1]
    kwargs = stock._prepare_attention_mask(kwargs, length, False)
    kwargs = stock._prepare_position_ids(kwargs, length, False)
    inputs = model.prepare_inputs_for_generation(ids, next_sequence_length=new, is_first_iteration=False, **kwargs)
    return inputs | {"logits_to_keep": drafted + 1}


def assert_same(ours, theirs):
    known = {name for name, value in ours.items() if value is not None}
    assert known == {name for name, value in theirs.items() if value is not None}
    for name in known:
        if isinstance(theirs[name], torch.Tensor):
            assert torch.equal(ours[name], theirs[name]), name
        else:
            assert ours[name] is theirs[name] or ours[name] == theirs[name], name


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kind", KINDS)
def test_rounds_are_those_of_stock(kind, mask):
    model = tiny()
    kwargs = carried(MASKS[mask], output_hidden_states=True)
    reference = dict(kwargs)
    inputs, ids, new = kind(model), prompt(7), None
    outputs = CausalLMOutputWithPast(**{CACHE: kwargs[CACHE]})
    for drafted, committed in ((3, 2), (4, 5), (0, 1), (300, 301), (2, 1)):
        candidate = torch.cat([ids, prompt(drafted, seed=drafted)], dim=1)
        sent = None if new is None else new + drafted
        seen = 0 if new is None else ids.shape[1] - new
        ours = inputs.of_text(candidate, kwargs, seen, drafted, drafted + 1, first=False)
        assert_same(ours, naive(model, candidate, reference, drafted, sent))
        inputs.after(outputs, kwargs, committed)
        reference = model._update_model_kwargs_for_generation(outputs, dict(reference), num_new_tokens=committed)
        assert_same(kwargs, reference)
        ids, new = prompt(ids.shape[1] + committed), 1


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({}, PlainForwardInputs),
        ({"output_attentions": True}, PlainForwardInputs),
        ({"token_type_ids": torch.zeros(1, 7)}, ForwardInputs),
        ({"pixel_values": torch.zeros(1)}, ForwardInputs),
        ({"position_ids": None}, ForwardInputs),
    ],
)
def test_only_plain_inputs_are_prepared_plainly(change, kind):
    assert type(forward_inputs(tiny(), prompt(7), carried(**change))) is kind


@pytest.mark.parametrize("kind", KINDS)
def test_batches_positions_of_three_kinds_and_tokens_that_came_after(kind):
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    kwargs = carried(mask) | {"position_ids": torch.stack([positions, positions + 1, positions * 2])}
    ours = kind(tiny()).of_text(prompt(12).repeat(2, 1), kwargs, 6, 5, 3, first=False)
    assert ours["input_ids"].shape == (2, 6)
    assert ours["attention_mask"].tolist() == [[0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], [1] * 12]
    assert ours["position_ids"][:, 0].tolist() == [[4, 5, 6, 7, 8, 9], [5, 6, 7, 8, 9, 10], [8, 9, 10, 11, 12, 13]]
    assert ours["position_ids"].is_contiguous()


def test_a_model_that_was_given_another_way_to_prepare_uses_it():
    model = tiny()
    model.prepare_inputs_for_generation = lambda *args, **kwargs: {}
    assert type(forward_inputs(model, prompt(7), carried())) is ForwardInputs


def test_a_model_that_prepares_otherwise_does():
    class Otherwise(type(tiny())):
        def prepare_inputs_for_generation(self, *args, **kwargs):
            return super().prepare_inputs_for_generation(*args, **kwargs)

    model = tiny()
    model.__class__ = Otherwise
    assert type(forward_inputs(model, prompt(7), carried())) is ForwardInputs


TREE = {"lossy_config": {"tree": {"depth": 3, "top_k": 2, "nodes": 6}}}


@pytest.mark.parametrize("keyword", [False, True], ids=["configuration", "keyword"])
@pytest.mark.parametrize(
    ("rows", "drafting", "more"),
    [(1, {}, {}), (1, TREE, {}), (1, TREE, {"cache_implementation": "static"}), (3, {}, {"eos_token_id": [5, 9]})],
    ids=["one", "tree", "tree, static", "batch"],
)
def test_a_loss_of_experts_does_not_read_our_masks(rows: int, drafting: dict, more: dict, keyword: bool):
    target = copy.deepcopy(family("mixtral")[0])
    target.config.output_router_logits = not keyword
    call = {"inputs": prompts(rows), "max_new_tokens": 12, "pad_token_id": 0} | more
    call |= {"output_router_logits": True} if keyword else {}
    assert_lossless(target, {"assistant_model": noisy_copy(target, 0.05)} | drafting, **call)
