"""SPRINTER's loop has the law of its theorem, meets the target as often as it should, and reads the right states.

Chi-square tests use p > 1e-5 on 6,000 tokens: they catch an output law that is off by 0.03 in any token.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.generation.streamers import BaseStreamer

from hf_lossy_assist import LossyError, pairs
from hf_lossy_assist.acceptors import Ears, Lossless, Sprinter
from hf_lossy_assist.config import parse
from tests.acceptors.fixtures import P, Q, Simulated, V, chi_square_p, telling
from tests.acceptors.fixtures import verifier_head as head_for
from tests.models import constant, noisy_copy, prompt, tiny

GREEDY = {"max_new_tokens": 60, "eos_token_id": None, "do_sample": False, "return_dict_in_generate": True}


def sample(mode, head, draft, tokens=6000, max_draft=10**6, **config):
    return constant(P).generate(
        input_ids=torch.tensor([[1]]),
        attention_mask=torch.tensor([[1]]),
        assistant_model=draft,
        lossy_mode=mode,
        lossy_head=head,
        lossy_config={"seed": 3, **(config or {"max_draft": max_draft})},
        do_sample=True,
        top_k=0,
        max_new_tokens=tokens,
        return_dict_in_generate=True,
    )


@pytest.mark.parametrize(("tpr", "fpr"), [(0.9, 0.3), (0.6, 0.6), (1.0, 0.0), (0.0, 0.0), (0.8, 1.0)])
def test_output_law_of_theorem_1(tpr: float, fpr: float):
    draft = telling(Q)
    head = head_for(constant(P), draft, "token", cls=Simulated).rates(tpr, fpr)
    out = sample("sprinter", head, draft)
    counts = np.bincount(out.sequences[0, 1:], minlength=V)
    law = (1 - fpr) * np.array(P) + fpr * np.array(Q)
    assert chi_square_p(counts, law) > 1e-5
    if fpr:
        assert chi_square_p(counts, np.array(P)) < 1e-9, "the test can tell the law from p"


def test_runs_are_as_long_as_the_rates_say():
    """Each token passes with probability a·Q(acceptable) + b·Q(other), independently: runs are geometric."""
    draft = telling(Q)
    head = head_for(constant(P), draft, "token", cls=Simulated).rates(0.9, 0.2)
    stats = sample("sprinter", head, draft).lossy_stats
    acceptable = np.array(Q)[np.array(Q) <= np.array(P)].sum()
    passing = 0.9 * acceptable + 0.2 * (1 - acceptable)
    expected, spread = passing / (1 - passing), np.sqrt(passing) / (1 - passing)
    assert abs(stats.mean_run - expected) < 4.5 * spread / np.sqrt(stats.runs)
    assert sum(i * n for i, n in enumerate(stats.run_histogram)) == stats.unverified
    assert stats.runs in (stats.rounds, stats.rounds + 1)


def test_a_verifier_that_always_rejects_is_lossless():
    target = tiny()
    draft = noisy_copy(target)
    plain = target.generate(input_ids=prompt(), **GREEDY)
    head = head_for(target, draft, bias=-50.0, scale=0.0)
    out = target.generate(input_ids=prompt(), assistant_model=draft, lossy_mode="sprinter", lossy_head=head, **GREEDY)
    assert out.sequences.tolist() == plain.sequences.tolist()
    assert out.lossy_stats.unverified == 0
    assert out.lossy_stats.target_calls == 60


@pytest.mark.parametrize("position", ["previous", "token"])
@pytest.mark.parametrize("max_draft", [1, 4, 64])
def test_a_verifier_that_always_accepts_follows_the_draft(position: str, max_draft: int):
    target = tiny()
    draft = noisy_copy(target, 0.1)
    head = head_for(target, draft, position, bias=50.0, scale=0.0)
    out = target.generate(
        input_ids=prompt(), assistant_model=draft, lossy_mode="sprinter", lossy_head=head,
        lossy_config={"max_draft": max_draft}, **GREEDY,
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


@pytest.mark.parametrize("position", ["previous", "token"])
@pytest.mark.parametrize("architecture", ["llama", "mistral", "gpt_neox"])
def test_text_is_that_of_a_naive_implementation(architecture: str, position: str):
    target = tiny(architecture)
    draft = noisy_copy(target, 0.08)
    head = head_for(target, draft, position, scale=3.0, seed=1)
    out = target.generate(
        input_ids=prompt(), assistant_model=draft, lossy_mode="sprinter", lossy_head=head,
        lossy_config={"max_draft": 7}, **GREEDY,
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
    target = tiny()
    draft = noisy_copy(target)
    head = head_for(target, draft, bias=50.0, scale=0.0)
    watcher = Watcher(target)
    target.generate(
        input_ids=prompt(), assistant_model=draft, lossy_mode="sprinter", lossy_head=head, streamer=watcher,
        lossy_config={"max_draft": 5}, **(GREEDY | {"max_new_tokens": 12}),
    )  # fmt: skip
    assert watcher.events == [7, *[1] * 4, "target", 1, *[1] * 4, "target", 1, 1, 1, "end"]


def test_the_text_ends_inside_a_run():
    target = tiny()
    draft = noisy_copy(target)
    head = head_for(target, draft, bias=50.0, scale=0.0)
    kwargs = {"input_ids": prompt(), "assistant_model": draft, "lossy_mode": "sprinter", "lossy_head": head}
    kwargs |= {"do_sample": False, "max_new_tokens": 40}
    free = target.generate(**kwargs, eos_token_id=None)[0, 7:].tolist()
    eos = next(token for i, token in enumerate(free) if i >= 10 and token not in free[:i])
    out = target.generate(**kwargs, eos_token_id=eos)[0, 7:].tolist()
    assert out == free[: free.index(eos) + 1]


def test_the_threshold_is_the_head_s_own_unless_another_is_given():
    verifier = pairs.load("arithmetic").heads["verifier"]
    assert verifier.config.threshold != 0.5, "or the test could not tell the two apart"
    assert parse("sprinter", None, verifier).acceptor.threshold == verifier.config.threshold
    assert parse("sprinter", None, verifier).acceptor.run_ahead.threshold == verifier.config.threshold
    assert parse("sprinter", {"threshold": 0.5}, verifier).acceptor.threshold == 0.5
    either = parse(["sprinter", "ears"], None, verifier).acceptor
    assert either.run_ahead.threshold == verifier.config.threshold
    assert f"threshold={verifier.config.threshold}" in repr(Sprinter(verifier))
    assert Sprinter(head_for(tiny(), tiny())).threshold == 0.5, "that of a configuration that says nothing"


def test_what_the_target_keeps_is_credited_to_the_base():
    draft = telling(Q)
    head = head_for(constant(P), draft, "token", cls=Simulated).rates(0.9, 0.2)
    stats = sample("sprinter", head, draft, 600).lossy_stats
    assert stats.unverified > 0
    assert stats.accepted > stats.unverified
    assert stats.accepted_by == {"sprinter": stats.unverified, "lossless": stats.accepted - stats.unverified}


def test_another_rule_may_decide_what_the_verifier_leaves():
    target = tiny()
    head = head_for(target, target)
    rule = parse(["sprinter", "ears"], {"sprinter": {"threshold": 0.7}}, head).acceptor
    assert rule.rules == (Sprinter(head, 0.7, base=None), Ears())
    assert rule.run_ahead.threshold == 0.7
    assert parse("sprinter", None, head).acceptor.base == Lossless()
    with pytest.raises(LossyError, match="sprinter"):
        parse({"all_of": ["sprinter", "ears"]}, None, head)
    draft = telling(Q)
    never = head_for(constant(P), draft, "token", cls=Simulated).rates(0.0, 0.0)
    stats = sample(["sprinter", "ears"], never, draft, ears={"beta": 0.2}).lossy_stats
    p, q = np.array(P), np.array(Q)
    expected = (q * np.minimum(1, p / q + 0.2 * (1 - p.max()))).sum()
    assert abs(stats.acceptance_rate - expected) < 4.5 * np.sqrt(expected * (1 - expected) / stats.drafted)
    assert set(stats.accepted_by) <= {"sprinter", "ears"}


@pytest.mark.parametrize(
    ("change", "needle"),
    [
        ({"assistant_model": None, "prompt_lookup_num_tokens": 3}, "assistant_model"),
        ({"output_scores": True}, "output_scores"),
        ({"lossy_config": {"threshold": 2}}, "threshold"),
        ({"lossy_config": {"max_draft": 0}}, "max_draft"),
    ],
)
def test_what_it_can_t_do_is_refused(change: dict, needle: str):
    target = tiny()
    draft = noisy_copy(target)
    kwargs = GREEDY | {"input_ids": prompt(), "assistant_model": draft, "lossy_mode": "sprinter"}
    with pytest.raises(LossyError, match=needle):
        target.generate(**(kwargs | {"lossy_head": head_for(target, draft)} | change))


def test_flops_are_counted_by_the_paper_and_as_they_are():
    target = tiny()
    draft = noisy_copy(target)
    head = head_for(target, draft, bias=50.0, scale=0.0)
    stats = target.generate(
        input_ids=prompt(), assistant_model=draft, lossy_mode="sprinter", lossy_head=head,
        lossy_config={"max_draft": 5}, **GREEDY,
    ).lossy_stats  # fmt: skip
    # One layer: queries and outputs 32 x 32, keys and values 32 x 16, three of the MLP 32 x 48; the head 64 x 32.
    weights = 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48) + 64 * 32
    context = 67 // 2
    one = 2 * weights + 4 * 32 * 2 * (context + 1)
    head_flops = 2 * 32 * 60
    assert stats.draft_tokens == 7 + 60 - 1
    assert stats.target_tokens == 7 + 60 - 1 + 12  # decided tokens are read again once they are committed
    assert stats.flops["actual"] == head_flops + one * (stats.draft_tokens + stats.target_tokens)
    published = one + 2 * 64 * 32
    assert stats.flops["paper"] == head_flops + published * (stats.draft_tokens + 12)
