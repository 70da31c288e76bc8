"""Where a run may be lossy."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_lossy_assist import LossyVerification
from hf_lossy_assist.acceptors import Acceptor, Ensemble, Lenience, Lossless, TopK, decide
from hf_lossy_assist.core.distributions import Randomness
from hf_lossy_assist.core.limits import Limits, LosslessPositions, Span
from hf_lossy_assist.core.messages import Verification
from hf_lossy_assist.core.shapes import Chain
from hf_lossy_assist.core.trees import Tree
from hf_lossy_assist.errors import LossyError
from tests.acceptors.fixtures import verifier_head
from tests.nightly import nightly, spread
from tests.tiny_models import noisy_copy, padded, prompt, tiny

GREEDY = {"max_new_tokens": 60, "eos_token_id": None, "do_sample": False, "return_dict_in_generate": True}
ANYTHING = {"k": 64}


def run(config: dict, **kwargs):
    """A rule that keeps everything, within limits."""
    target = tiny()
    draft = noisy_copy(target, 0.1)
    call = {"input_ids": prompt(), "assistant_model": draft, "lossy_mode": "topk"} | GREEDY | kwargs
    config = {"max_draft": 5} | config if call["lossy_mode"] == "sprinter" else ANYTHING | config
    return target.generate(**call, lossy_config=config)


def lossy(out) -> list[bool]:
    return [kind == "accepted_lossy" for kind in out.lossy_stats.trace]


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


@pytest.mark.parametrize(
    ("rule", "do_sample"), [(Ensemble(weight=0.5), False), (Lenience(factor=0.5), True), (TopK(published=True), True)]
)
def test_where_a_budget_is_used_up_the_lossless_rule_decides_and_corrects(rule: Acceptor, do_sample: bool):
    p, q = torch.tensor([0.3, 0.4, 0.2, 0.1]), torch.tensor([0.75, 0.1, 0.05, 0.1])
    tokens = torch.arange(4).repeat(100)[:, None]
    v = {"tokens": tokens, "logits": p.log().expand(400, 2, -1), "draft_logits": q.log().expand(400, 1, -1)}
    nothing = LosslessPositions(tokens < 0, torch.zeros_like(tokens), Chain(1, p.device))
    ours, expected = (
        decide(each, Verification(**v, do_sample=do_sample, randomness=Randomness(3)), positions)
        for each, positions in ((rule, nothing), (Lossless(), None))
    )
    assert torch.equal(ours.n_accepted, expected.n_accepted)
    assert torch.equal(ours.next_token, expected.next_token)


def naive_inside(ids: list[int], start: list[int], end: list[int]) -> list[bool]:
    inside, out = False, []
    for i in range(len(ids)):
        if ids[: i + 1][-len(end) :] == end and (inside or start != end):
            inside = False
        elif ids[: i + 1][-len(start) :] == start:
            inside = True
        out.append(inside)
    return out


@pytest.mark.parametrize(("start", "end"), [([4], [5]), ([4, 4], [5]), ([4], [5, 6]), ([4], [4])])
def test_a_span_equals_a_scan(start: list[int], end: list[int]):
    ids = torch.randint(3, 8, (20, 40), generator=torch.Generator().manual_seed(0))
    span = Span(tuple(start), tuple(end))
    assert span.inside(ids).tolist() == [naive_inside(row, start, end) for row in ids.tolist()]


SCOPES = {
    "within": {"start": 4, "end": [5, 6]},
    "except": {"except": [[4, 5], [[6, 7], 3]]},
    "except one marker": {"except": [[4, 4]]},
    "both": {"start": 4, "end": 5, "except": [[6, 7]]},
    "everywhere": {"except": []},
}


def naive_strict(text: list[int], scope: dict) -> list[bool]:
    """Whether each token has to be lossless: before it and after it, the text has to be in scope."""

    def ids(marker: int | list[int]) -> list[int]:
        return marker if isinstance(marker, list) else [marker]

    within = [True] * len(text)
    if "start" in scope:
        within = naive_inside(text, ids(scope["start"]), ids(scope["end"]))
    others = [naive_inside(text, ids(start), ids(end)) for start, end in scope.get("except", [])]
    covered = [own and not any(inside) for own, *inside in zip(within, *others, strict=True)]
    return [False] + [not (before and after) for before, after in itertools.pairwise(covered)]


def naive_after_quote(text: list[int], prompt: list[int], n: int) -> list[bool]:
    """Whether the n tokens before each stand in the prompt, which goes on there."""
    spans = [prompt[i : i + n] for i in range(len(prompt) - n)]
    return [i >= n and text[i - n : i] in spans for i in range(len(text))]


PROMPTS = torch.randint(3, 8, (3, 12), generator=torch.Generator().manual_seed(0))
DRAFTS = torch.randint(3, 8, (3, 9), generator=torch.Generator().manual_seed(1))
DRAFTS[:, :5] = PROMPTS[:, 3:8]  # a quote
TREE = Tree(torch.tensor([[-1, -1, 0, 2, 3, 3, 4, 1, 7], [-1, 0, 1, 2, 3, 4, 5, 0, 1], [-1] * 9]), levels=7)
CHAIN = Chain(9, torch.device("cpu"))


@given(
    shape=st.sampled_from([CHAIN, TREE]), scope=st.sampled_from([None, *SCOPES.values()]),
    n=st.sampled_from([None, 1, 2, 3, 11, 12, 99]), committed=st.integers(0, 3), padding=st.integers(0, 12),
    first=st.sampled_from([0, 3]),
)  # fmt: skip
@settings(max_examples=150, deadline=None, derandomize=True)
def test_strict_positions_equal_a_naive_look_at_every_path(shape, scope, n, committed, padding, first):
    limits = Limits(strict_first_n=first, scope=scope, strict_on_quotes=n)
    bound, pads = limits.bind(None), torch.arange(12) < padding
    text = torch.cat([PROMPTS, PROMPTS[:, :committed], DRAFTS], dim=1)
    if bound is None:
        return
    found = bound.lossless_positions(text, shape, [committed] * 3, [0] * 3, PROMPTS.masked_fill(pads, -1)).positions
    found = found.expand(3, -1)
    for row in range(3):
        known = text[row, :-9].tolist()
        for node in range(9):
            path = [node] if shape is TREE else list(range(node + 1))
            while shape is TREE and int(shape.parents[row, path[0]]) >= 0:
                path.insert(0, int(shape.parents[row, path[0]]))
            own = [*known, *DRAFTS[row, path].tolist()]
            strict = committed + len(path) <= first
            strict |= scope is not None and naive_strict(own, scope)[-1]
            strict |= n is not None and naive_after_quote(own, PROMPTS[row, padding:].tolist(), n)[-1]
            assert bool(found[row, node]) == strict


DRAFTING = {
    "chain": {},
    "tree": {"lossy_config": {"tree": {"depth": 4, "top_k": 3, "nodes": 10}}},
    "batch": padded(),
    "sampling": {"do_sample": True, "lossy_config": {"seed": 3}},
    "sprinter": {"lossy_mode": "sprinter"},
}
NARROWED = {
    "except": {"scope": {"except": [[22, 26], [45, 45]]}}, "quotes": {"strict_on_quotes": 1},
    "within": {"scope": {"start": 3, "end": [63]}},
}  # fmt: skip


@spread(drafting=DRAFTING, narrowed=NARROWED)
def test_no_call_is_lossy_where_it_must_not_be(drafting: str, narrowed: str):
    more, config = dict(DRAFTING[drafting]), NARROWED[narrowed]
    if drafting == "sprinter":
        target = tiny()
        more |= {"lossy_head": verifier_head(target, noisy_copy(target, 0.1), scale=3.0, seed=1)}
    out = run(config | more.pop("lossy_config", {}), **more)
    width, count = padded()["input_ids"].shape[1] if drafting == "batch" else 7, 0
    rows = out.lossy_stats.rows if drafting == "batch" else [out.lossy_stats]
    starts = padded()["attention_mask"].argmax(-1).tolist() if drafting == "batch" else [0]
    for ids, stats, start in zip(out.sequences.tolist(), rows, starts, strict=True):
        quoted = naive_after_quote(ids[start:], ids[start:width], config.get("strict_on_quotes", 10**6))
        scoped = naive_strict(ids[start:], config.get("scope", {"except": []}))
        for i, status in enumerate(stats.trace, start=width - start):
            assert status != "accepted_lossy" or not (quoted[i] or scoped[i])
            count += status == "accepted_lossy"
    assert count > 0


def test_thinking_in_a_prompt_counts_and_needs_a_tokenizer(pair):
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


HOOKED = [{"strict_first_n": 9}, {"budget": 0.1}, *NARROWED.values()]


@pytest.mark.parametrize("config", nightly(HOOKED, but=HOOKED[1:3]), ids=str)
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
