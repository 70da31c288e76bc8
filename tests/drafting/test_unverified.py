"""Drafting runs ahead of the target as algorithm 2 of SPRINTER does; rows of a batch do so apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation.streamers import BaseStreamer

from hf_lossy_assist.core.messages import Verification
from hf_lossy_assist.decoding import unverified
from hf_lossy_assist.decoding.unverified import one_of_each
from tests.acceptors.fixtures import verifier_head as head_for
from tests.nightly import spread
from tests.tiny_models import LENGTHS, VOCAB, noisy_copy, padded, prompt, tiny

TOKENS = 40
GREEDY = {"do_sample": False, "max_new_tokens": TOKENS, "eos_token_id": None, "return_dict_in_generate": True}
LONGER = GREEDY | {"max_new_tokens": 60}


@pytest.mark.parametrize("position", ["previous", "token"])
@pytest.mark.parametrize("max_draft", [1, 4, 64])
def test_a_verifier_that_always_accepts_follows_the_draft(position: str, max_draft: int):
    target = tiny("llama")
    draft = noisy_copy(target, 0.1)
    head = head_for(target, draft, position, bias=50.0, scale=0.0)
    out = target.generate(
        input_ids=prompt(), assistant_model=draft, lossy_mode="sprinter", lossy_head=head,
        lossy_config={"max_draft": max_draft}, **LONGER,
    )  # fmt: skip
    ids, start = out.sequences, prompt().shape[1]
    with torch.no_grad():
        drafts, targets = (model(input_ids=ids).logits.argmax(-1)[0] for model in (draft, target))
    for i in range(60):
        decided = (i + 1) % max_draft == 0
        assert ids[0, start + i] == (targets if decided else drafts)[start + i - 1]
    stats = out.lossy_stats
    assert stats.target_calls == 60 // max_draft
    assert stats.target_calls_per_100_tokens == pytest.approx(100 * (60 // max_draft) / 60)
    assert stats.unverified == 60 - 60 // max_draft
    assert len(stats.trace) == 60


@spread(architecture=["llama", "mistral", "gpt_neox"], late=[False, True], position=["previous", "token"])
def test_text_is_that_of_a_naive_implementation(monkeypatch, architecture: str, late: bool, position: str):
    """Also where the next token is drafted before the last one is looked at, as on a GPU."""
    monkeypatch.setattr(unverified, "looks_late", lambda device: late)
    target = tiny(architecture)
    draft = noisy_copy(target, 0.08)
    head = head_for(target, draft, position, scale=3.0, seed=1)
    out = target.generate(
        input_ids=prompt(), assistant_model=draft, lossy_mode="sprinter", lossy_head=head,
        lossy_config={"max_draft": 7}, **LONGER,
    )  # fmt: skip
    text, unseen = naive_sprinter(target, draft, head, 60, 7)
    assert out.sequences[0].tolist() == text
    assert out.lossy_stats.unverified == unseen
    assert 0 < unseen < 60
    # Every committed token but the newest goes through the target once, and each token it decides once more.
    calls = out.lossy_stats.target_calls
    assert out.lossy_stats.target_tokens <= len(text) - 1 + calls


@torch.no_grad()
def naive_sprinter(target, draft, head, tokens: int, max_draft: int) -> tuple[list[int], int]:
    weight, bias = head.weight.double().numpy(), float(head.bias)

    def look(model, ids):
        seen = []
        handle = model.get_output_embeddings().register_forward_pre_hook(lambda _, args: seen.append(args[0][0, -1]))
        best = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax().item()
        handle.remove()
        return best, seen[0].double().numpy()

    ids, unseen, run = prompt()[0].tolist(), 0, 0
    for _ in range(tokens):
        x, state = look(draft, ids)
        if head.config.position == "token":
            state = look(draft, [*ids, x])[1]
        if run < max_draft - 1 and 1 / (1 + np.exp(-(state @ weight + bias))) > 0.5:
            ids.append(x)
            unseen, run = unseen + 1, run + 1
        else:
            ids.append(look(target, ids)[0])
            run = 0
    return ids, unseen


class Watcher(BaseStreamer):
    def __init__(self, target):
        self.events = []
        target.register_forward_pre_hook(lambda *_: self.events.append("target"))

    def put(self, value):
        self.events.append(value.numel())

    def end(self):
        self.events.append("end")


def test_tokens_are_streamed_before_the_target_is_asked():
    target = tiny("llama")
    draft = noisy_copy(target)
    head = head_for(target, draft, bias=50.0, scale=0.0)
    watcher = Watcher(target)
    target.generate(
        input_ids=prompt(), assistant_model=draft, lossy_mode="sprinter", lossy_head=head, streamer=watcher,
        lossy_config={"max_draft": 5}, **(LONGER | {"max_new_tokens": 12}),
    )  # fmt: skip
    assert watcher.events == [7, *[1] * 4, "target", 1, *[1] * 4, "target", 1, 1, 1, "end"]


def alone(i: int) -> dict[str, torch.Tensor]:
    return {"input_ids": prompt(LENGTHS[i], seed=i), "attention_mask": torch.ones(1, LENGTHS[i]).long()}


@spread(
    case=[
        ("llama", "sprinter", {}),
        ("mistral", "sprinter", {}),
        ("gpt2", ["sprinter", "topk"], {"topk": {"k": 3}}),
        ("llama", "sprinter", {"budget": 0.4, "strict_first_n": 5}),
    ],
    position=["previous", "token"],
)
def test_a_row_gets_what_it_gets_alone(case: tuple[str, Any, dict], position: str):
    architecture, mode, settings = case
    target = tiny(architecture)
    draft = noisy_copy(target, 0.08)
    head = head_for(target, draft, position, scale=3.0, seed=1)
    settings = settings | ({"sprinter": {"max_draft": 7}} if isinstance(mode, list) else {"max_draft": 7})
    kwargs = GREEDY | {"assistant_model": draft, "lossy_mode": mode, "lossy_head": head, "lossy_config": settings}
    kwargs |= {"eos_token_id": [5, 17], "pad_token_id": 0}
    out = target.generate(**kwargs, **padded())
    ends = set()
    for i, length in enumerate(LENGTHS):
        single = target.generate(**kwargs, **alone(i))
        row = out.lossy_stats.rows[i]
        generated = len(single.lossy_stats.trace)
        ends.add(generated)
        assert out.sequences[i, max(LENGTHS) - length :][: length + generated].equal(single.sequences[0])
        assert row.trace == single.lossy_stats.trace
        assert row.run_histogram == single.lossy_stats.run_histogram
        assert (row.rounds, row.unverified) == (single.lossy_stats.rounds, single.lossy_stats.unverified)
    assert 0 < out.lossy_stats.unverified < len(out.lossy_stats.trace)
    assert len(ends) > 1, "rows end apart"


@pytest.mark.parametrize("columns", [(2,), (4, 0), (0, 3, 1)])
def test_the_target_answers_about_one_token_of_each_row(columns: tuple[int, ...]):
    rows, n, generator = len(columns), 5, torch.Generator().manual_seed(1)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(rows, *shape, generator=generator)

    whole = Verification(
        tokens=torch.randint(VOCAB, (rows, n), generator=generator), logits=drawn(n + 1, 7), draft_logits=drawn(n, 7),
        hidden=drawn(n + 1, 4), dropped_logits=drawn(3, n, 7), centroid_logits=drawn(n, 7),
    )  # fmt: skip
    one = one_of_each(whole, torch.tensor(columns))
    assert len(one) == 1
    assert one.shape.drafted is None
    for row, at in enumerate(columns):
        for name in ("tokens", "draft_logits", "centroid_logits"):
            assert getattr(one, name)[row, 0].equal(getattr(whole, name)[row, at])
        for name in ("logits", "hidden"):
            assert getattr(one, name)[row].equal(getattr(whole, name)[row, at : at + 2])
        assert one.dropped_logits[row, :, 0].equal(whole.dropped_logits[row, :, at])
