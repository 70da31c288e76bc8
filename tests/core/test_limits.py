"""Where a run may be lossy."""

from __future__ import annotations

import pytest
import torch

from hf_lossy_assist import LossyVerification, pairs
from hf_lossy_assist.acceptors import Lossless, TopK, decide
from hf_lossy_assist.core.limits import Limits, LosslessPositions, Scope
from hf_lossy_assist.core.messages import Verification
from hf_lossy_assist.core.shapes import Chain
from hf_lossy_assist.errors import LossyError
from tests.tiny_models import noisy_copy, prompt, tiny

GREEDY = {"max_new_tokens": 60, "eos_token_id": None, "do_sample": False, "return_dict_in_generate": True}
ANYTHING = {"k": 64}


def run(config: dict, **kwargs):
    """A rule that keeps everything, within limits."""
    target = tiny()
    draft = noisy_copy(target, 0.1)
    return target.generate(
        input_ids=prompt(), assistant_model=draft, lossy_mode="topk", lossy_config=ANYTHING | config, **GREEDY | kwargs
    )


def lossy(out) -> list[bool]:
    return [kind == "accepted_lossy" for kind in out.lossy_stats.trace]


def test_without_limits_the_rule_is_lossy_from_the_start():
    assert any(lossy(run({}))[:10])
    assert sum(lossy(run({}))) > 20


@pytest.mark.parametrize("n", [1, 10, 25, 100])
def test_the_first_tokens_are_lossless(n: int):
    out = run({"strict_first_n": n})
    plain = tiny().generate(input_ids=prompt(), **GREEDY)
    assert not any(lossy(out)[:n])
    assert out.sequences[0, : 7 + n].tolist() == plain.sequences[0, : 7 + n].tolist()
    assert any(lossy(out)) == (n < 60)


@pytest.mark.parametrize(("budget", "gamma"), [(0, 5), (0.05, 1), (0.05, 16), (0.2, 1), (0.2, 5), (0.2, 16), (1, 5)])
def test_no_prefix_is_over_its_budget(budget: float, gamma: int):
    marks = lossy(run({"budget": budget}, num_assistant_tokens=gamma))
    for i in range(1, 61):
        assert sum(marks[:i]) <= budget * i + 1e-6
    assert (sum(marks) > 0) == (budget > 0)
    # What the budget allows is used: the rule keeps everything, and the draft is often wrong.
    assert sum(marks) >= min(int(budget * 60) - 1, 20)


@pytest.mark.parametrize("percent", [0, 10, 29, 53, 59, 99, 100])
def test_a_budget_is_exact_at_every_length(percent: int):
    """In floats, 0.53 of 100 tokens is less than 53, and 0.29 of 100 less than 29."""
    n = 1000
    limits = Limits(budget=percent / 100).bind(None)
    positions = limits.lossless_positions(torch.zeros(1, n), Chain(n, torch.device("cpu")), [0], [0])
    assert positions.allowance.tolist() == [[percent * i // 100 for i in range(1, n + 1)]]


def test_the_last_token_of_a_budget_is_found_inside_a_round():
    v = Verification(tokens=torch.tensor([[1, 2, 1, 1]]), logits=torch.eye(4)[[2, 2, 2, 2, 2]][None])
    strict = LosslessPositions(torch.tensor([[False] * 4]), torch.tensor([[1, 1, 1, 2]]), v.shape)
    decision = decide(TopK(k=4), v, strict)
    assert decision.keep.tolist() == [[True, True, False, False]]
    assert decision.n_accepted.tolist() == [2]
    assert decision.next_token.tolist() == [2]
    assert decision.kept_by["topk"].tolist() == [[True, True, False, False]]


def test_a_strict_position_is_corrected_losslessly():
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.1, 0.1, 0.8])
    v = Verification(
        tokens=torch.full((4000, 1), 2),
        logits=p.log().expand(4000, 2, -1),
        draft_logits=q.log().expand(4000, 1, -1),
        do_sample=True,
    )
    strict = decide(TopK(k=1), v, LosslessPositions(torch.ones(4000, 1, dtype=torch.bool), None, v.shape))
    assert torch.equal(strict.n_accepted, decide(Lossless(), v).n_accepted)
    rejected = strict.next_token[strict.n_accepted == 0]
    assert len(rejected) > 2000
    assert (rejected != 2).all()


def naive_inside(ids: list[int], start: list[int], end: list[int]) -> list[bool]:
    inside, out = False, []
    for i in range(len(ids)):
        if ids[: i + 1][-len(end) :] == end:
            inside = False
        elif ids[: i + 1][-len(start) :] == start:
            inside = True
        out.append(inside)
    return out


@pytest.mark.parametrize(("start", "end"), [([4], [5]), ([4, 4], [5]), ([4], [5, 6])])
def test_scope_equals_a_scan(start: list[int], end: list[int]):
    ids = torch.randint(3, 8, (20, 40), generator=torch.Generator().manual_seed(0))
    scope = Scope(tuple(start), tuple(end))
    assert scope.inside(ids).tolist() == [naive_inside(row, start, end) for row in ids.tolist()]


def test_only_the_marked_part_is_lossy():
    plain = tiny().generate(input_ids=prompt(), **GREEDY).sequences[0, 7:].tolist()
    start, end = plain[5], 63
    out = run({"scope": {"start": start, "end": [end]}})
    ids = out.sequences[0].tolist()
    inside = naive_inside(ids, [start], [end])
    for i, mark in enumerate(lossy(out), start=7):
        assert not mark or (inside[i - 1] and ids[i] != end)
    assert any(lossy(out))


def test_thinking_in_a_prompt_counts_and_needs_a_tokenizer():
    pair = pairs.load("arithmetic")
    tokenizer = pair.tokenizer
    inputs = tokenizer(pair.task.examples("test", 1)[0].prompt, return_tensors="pt")
    word = tokenizer.decode(inputs["input_ids"][0, -1:])
    kwargs = inputs | {"assistant_model": pair.draft, "lossy_mode": "topk", "max_new_tokens": 40, "do_sample": False}
    kwargs |= {"return_dict_in_generate": True, "tokenizer": tokenizer}
    scope = {"start": word, "end": "zzz"}
    assert any(lossy(pair.target.generate(**kwargs, lossy_config={"k": 50, "scope": scope})))
    nowhere = {"start": "zzz", "end": word}
    assert not any(lossy(pair.target.generate(**kwargs, lossy_config={"k": 50, "scope": nowhere})))
    kwargs.pop("tokenizer")
    with pytest.raises(LossyError, match="tokenizer"):
        pair.target.generate(**kwargs, lossy_config={"scope": scope})


@pytest.mark.parametrize("config", [{"strict_first_n": 9}, {"budget": 0.1}, {"scope": {"start": 33, "end": 8}}])
def test_the_hook_has_the_same_limits(config: dict):
    target = tiny()
    draft = noisy_copy(target, 0.1)
    ours = run(config)
    hook = LossyVerification("topk", target, assistant_model=draft, num_assistant_tokens=5, **ANYTHING, **config)
    with hook:
        theirs = target.generate(input_ids=prompt(), assistant_model=draft, logits_processor=[hook], **GREEDY)
    assert theirs.sequences.tolist() == ours.sequences.tolist()
    assert hook.stats.trace == ours.lossy_stats.trace


def test_no_limits_cost_nothing():
    assert Limits().bind(None) is None
