"""The head tap: dropped heads get what clean logits get, and nothing stays behind."""

from __future__ import annotations

import pytest
import torch
from transformers import LogitsProcessorList

from hf_lossy_assist.acceptors import DropMatch
from hf_lossy_assist.core.distributions import Randomness
from hf_lossy_assist.core.messages import Draft
from hf_lossy_assist.models.target import TargetReader
from tests.architectures import made
from tests.tiny_models import ARCHITECTURES, prompt, tiny

TRANSFORMING = {
    "gemma2": ({"final_logit_softcapping": 2.0}, lambda z: 2.0 * torch.tanh(z / 2.0)),
    "cohere": ({"logit_scale": 0.25}, lambda z: 0.25 * z),
    "granite": ({"logits_scaling": 3.0}, lambda z: z / 3.0),
}


def dropped_logits(model, transform, k=3, rate=0.4, seed=0):
    """Return what the verifier reports, and the same computed by hand, one path and one position at a time."""
    ids, n = prompt(9), 4
    rule = DropMatch(num_paths=k, dropout=rate)
    reader = TargetReader(model, LogitsProcessorList(), rule, do_sample=False, randomness=Randomness(seed))
    with torch.no_grad():
        with reader.hook.over(n):
            outputs = model(input_ids=ids, use_cache=False)
        v = reader.answer(ids, Draft(ids[:, -n:]), *reader.hook.split(outputs.logits, n))
        seen = []
        head = model.get_output_embeddings()
        handle = head.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
        plain = model(input_ids=ids, use_cache=False).logits
        handle.remove()
        hidden = seen[0][0, -n - 1 : -1]
        masks = Randomness(seed).keep_mask((1, k, n, hidden.shape[-1]), rate, hidden)
        by_hand = torch.stack(
            [torch.stack([transform(head(hidden[i] * masks[0, j, i])) for i in range(n)]) for j in range(k)]
        )
    return v, plain, by_hand


@pytest.mark.parametrize("name", TRANSFORMING)
def test_what_a_model_does_after_its_head_happens_to_every_path(name: str):
    values, transform = TRANSFORMING[name]
    v, plain, by_hand = dropped_logits(made(name, **values).float(), transform)
    torch.testing.assert_close(v.dropped_logits[0], by_hand, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(v.logits, plain[:, -5:], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(v.centroid_logits[0], by_hand.mean(0), atol=1e-4, rtol=1e-4)
    assert (by_hand[0] - by_hand[1]).abs().max() > 1e-2, "the paths differ"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_dropped_heads_of_every_architecture(architecture: str):
    v, plain, by_hand = dropped_logits(tiny(architecture), lambda z: z)
    torch.testing.assert_close(v.dropped_logits[0], by_hand, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(v.logits, plain[:, -5:], atol=1e-4, rtol=1e-4)
