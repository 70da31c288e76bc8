"""vLLM's tensors become a verification, and the decision becomes vLLM's output; vLLM itself is not needed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hf_lossy_assist.acceptors import Acceptor, DroppedHeads, Judge, Lossless, Regret, TopK, Typical, decide
from hf_lossy_assist.core.limits import Limits
from hf_lossy_assist.core.messages import Decision, Verification
from hf_lossy_assist.core.shapes import Chain
from hf_lossy_assist.generation.config import LossyConfig
from hf_lossy_assist.heads import JudgeConfig, JudgeHead, ModelIdentity
from hf_lossy_assist.integrations.vllm.rounds import (
    NOTHING,
    EngineStep,
    Group,
    KeyedRandomness,
    Rows,
    RunningRequests,
    Tables,
    decide_group,
    keys_of,
    seed_of,
)
from hf_lossy_assist.integrations.vllm.settings import Drafting, EngineSettings
from tests.acceptors.fixtures import P, Q, assert_leaves, chi_square_p, law_of
from tests.acceptors.table import ROWS, Row, row_id

SAMPLING = pytest.mark.parametrize("do_sample", [False, True], ids=["greedy", "sampling"])
AHEAD = {"sprinter"}
REQUESTS = 40_000
V = len(P)
COUNTS = [3, 0, 5, 1, 5]
SLOTS = [4, 0, 7, 2, 8]


def decided(
    step: EngineStep,
    rule: Acceptor,
    rows: list[int] | None = None,
    do_sample: bool = False,
    tables: Any = None,
    prompt: int = 1,
    **limits: Any,
) -> tuple[torch.Tensor, Decision]:
    """Decide some requests of a step, or all; each has its number as seed and slot, and so many tokens of prompt."""
    count = len(step.counts)
    rows = list(range(count)) if rows is None else rows
    index, limits = torch.tensor(rows), Limits(**limits)
    group = Group(
        LossyConfig(rule, limits=limits), do_sample, limits.bind(None), rows, index, seeds=index,
        prompts=torch.full_like(index, prompt), slots=index,
    )  # fmt: skip
    return decide_group(group, step, Tables(count, torch.device("cpu")) if tables is None else tables)


def step_of(counts: list[int], seed: int = 0, with_q: bool = True, position: int = 0) -> EngineStep:
    """Random drafts and distributions of several requests."""
    generator = torch.Generator().manual_seed(seed)
    total, ends = sum(counts), torch.tensor(counts).cumsum(0)
    q = (2 * torch.randn(total, V, generator=generator)).softmax(-1)
    return EngineStep(
        tokens=torch.randint(V, (total,), generator=generator).int(),
        logits=2 * torch.randn(total, V, generator=generator),
        ends=ends.int(),
        counts=counts,
        bonus=torch.randint(V, (len(counts),), generator=generator).int(),
        positions=torch.full((len(counts),), position),
        draft_probs=q if with_q else None,
        states=torch.randn(total + len(counts), 4, generator=generator),
    )


@SAMPLING
@pytest.mark.parametrize("row", [row for row in ROWS if row.mode not in AHEAD], ids=row_id)
def test_output_law(row: Row, do_sample: bool):
    """The first token of every request has the rule's closed law, or that of its oracle."""
    law, target = law_of(do_sample)
    q, rule = torch.tensor(Q), row.rule(target)
    tokens = torch.multinomial(q, REQUESTS, True, generator=torch.Generator().manual_seed(1))
    tokens = tokens if do_sample else torch.full((REQUESTS,), int(q.argmax()))

    def dropped(heads: DroppedHeads, randomness: KeyedRandomness):
        mask = randomness.keep_mask((REQUESTS, heads.num_paths, target.h.numel()), heads.dropout, target.h)
        paths = ((target.h * mask) @ target.lm_head.weight.T).detach()
        return paths, paths.mean(1)

    step = EngineStep(
        tokens.int(),
        torch.tensor(P).log().expand(REQUESTS, -1),
        torch.arange(1, REQUESTS + 1).int(),
        [1] * REQUESTS,
        bonus=torch.zeros(REQUESTS, dtype=torch.int),
        positions=torch.arange(REQUESTS) % 7,
        draft_probs=q.expand(REQUESTS, -1),
        states=target.h.detach().expand(2 * REQUESTS, -1),
        dropped=dropped,
    )
    output, decision = decided(step, rule, do_sample=do_sample)
    assert (output[:, 1] == torch.where(decision.complete, 0, NOTHING)).all()
    assert_leaves(row, law, output[:, 0].numpy())


def test_first_tokens_are_lossless_and_the_budget_lasts_for_the_whole_text():
    tables = Tables(2, torch.device("cpu"))
    lossy = TopK(k=V)  # keeps every token
    step = step_of([4, 4], with_q=False)
    best = step.logits.argmax(-1)
    step = replace(step, tokens=((best + 1) % V).int())
    output, _ = decided(step, lossy, tables=tables, strict_first_n=2)
    assert output[:, 0].tolist() == best[[0, 4]].tolist(), "the first token is the target's"
    # The prompt has one token, so position 2 is that of the second generated one.
    later = replace(step, positions=torch.full((2,), 2))
    output, _ = decided(later, lossy, tables=tables, strict_first_n=2)
    assert output[:, :4].flatten().tolist() == step.tokens.tolist()
    assert tables.lossy.tolist() == [4, 4]
    output, _ = decided(replace(step, positions=torch.tensor([4, 9])), lossy, tables=tables, budget=0.5)
    # 4 tokens are generated in the first text, and all are lossy; 9 in the second, so that the 10th may be the fifth.
    assert (output[0] != NOTHING).sum() == 1
    assert (output[1] != NOTHING).sum() == 2
    tables.clear(0)
    assert tables.lossy.tolist() == [0, 5]


@SAMPLING
def test_a_draft_ends_where_a_grammar_forbids_it(do_sample: bool):
    """vLLM marks the rest with -1; the target's own token follows, and not that of the draft's end."""
    step = step_of([4, 4], with_q=False)
    cut = replace(
        step, tokens=torch.where(torch.arange(8) % 4 < torch.tensor([2, 1]).repeat_interleave(4), step.tokens, -1)
    )
    output, _ = decided(cut, TopK(k=V), do_sample=do_sample)
    assert (output != NOTHING).sum(-1).tolist() == [3, 2]
    assert output[0, :2].tolist() == step.tokens[:2].tolist()
    if not do_sample:
        assert [int(output[0, 2]), int(output[1, 1])] == step.logits[[2, 5]].argmax(-1).tolist()


@pytest.mark.parametrize(
    ("limits", "texts", "prompt", "kept"),
    [
        ({"scope": {"start": 5, "end": 6}}, [[-1, 5, 1], [5, 6, 1]], 1, [2, 0]),
        ({"strict_on_quotes": 2}, [[5, 6, 7, 5, 6], [5, 7, 6, 5, 6]], 3, [0, 2]),  # the first row quotes ``5, 6``
    ],
    ids=["a scope", "a quote of the prompt"],
)
def test_limits_are_read_from_the_text(limits: dict, texts: list[list[int]], prompt: int, kept: list[int]):
    texts, step = torch.tensor(texts), step_of([2, 2], with_q=False)
    wrong = ((step.logits.argmax(-1) + 1) % 5).int()
    step = replace(
        step, tokens=wrong, texts=lambda rows: texts[list(rows)], positions=torch.full((2,), texts.shape[1] - 1)
    )
    _, decision = decided(step, TopK(k=V), prompt=prompt, **limits)
    assert decision.n_accepted.tolist() == kept


def test_requests_with_a_grammar_are_lossless():
    settings = EngineSettings.read({"mode": f"topk:k={V}"}, Drafting("ngram", 5, keeps_probs=False))
    running = RunningRequests(settings, Tables(4, torch.device("cpu")), None, 0, torch.tensor)
    scoped = {"lossy_mode": "topk", "lossy_config": {"k": V, "scope": {"except": []}}}
    asked = {"free": ({}, None), "held": ({}, object()), "scoped": (scoped, object())}
    states = {
        id: SimpleNamespace(
            num_prompt_tokens=1,
            sampling_params=SimpleNamespace(temperature=0.0, seed=1, extra_args=extra, structured_outputs=grammar),
        )
        for id, (extra, grammar) in asked.items()
    }
    groups, _ = running.groups([*asked], states)
    step = step_of([2, 2, 2], with_q=False)
    wrong = ((step.logits.argmax(-1) + 1) % 5).int()
    step = replace(step, tokens=wrong, texts=lambda rows: torch.zeros(len(rows), 1).long())
    kept = {tuple(group.rows): decide_group(group, step, running.tables)[1].n_accepted.tolist() for group in groups}
    assert kept == {(0,): [2], (1,): [0], (2,): [2]}


def test_a_charge_is_remembered():
    tables, rule = Tables(3, torch.device("cpu")), Regret(total_regret=1.0, local_regret=1.0)
    step = step_of([3, 3, 3], with_q=False)
    likely = step.logits.topk(2, -1).indices[:, 1].int()
    decided(replace(step, tokens=likely), rule, tables=tables)
    first = tables.charged.clone()
    assert (first > 0).any()
    decided(replace(step, tokens=likely), rule, tables=tables)
    assert (tables.charged >= first).all()
    assert (tables.charged <= 1).all()


@pytest.mark.parametrize("bonus", [False, True], ids=["own row", "vLLM's bonus"])
def test_a_token_that_no_law_can_draw_is_token_0(bonus: bool):
    """Two requests keep nothing, the second because of NaN; a third keeps its draft, so vLLM's bonus token ends it."""
    logits = torch.zeros(3, V).index_put((torch.tensor([0, 2]), torch.tensor([1, 2])), torch.tensor(torch.inf))
    logits = torch.where(logits > 0, 0.0, -torch.inf)
    logits[1] = torch.nan
    step = EngineStep(
        tokens=torch.tensor([0, 0, 2]),
        logits=logits if bonus else logits.repeat_interleave(2, 0),
        ends=torch.tensor([1, 2, 3]),
        counts=[1, 1, 1],
        positions=torch.zeros(3, dtype=torch.long),
        bonus=torch.tensor([3, 3, 3]) if bonus else None,
    )
    output, _ = decided(step, Lossless(), do_sample=True)
    assert output.tolist() == [[1, NOTHING], [0, NOTHING], [2, 3 if bonus else 2]]


def random_rows(seed: int = 0) -> tuple[Rows, torch.Tensor, torch.Tensor]:
    """Rows, p's logits, and the table of the drafts' logits, most of whose rows belong to other requests."""
    generator = torch.Generator().manual_seed(seed)
    total = sum(COUNTS) + len(COUNTS)
    lengths = torch.tensor([0, *(n + 1 for n in COUNTS)])
    rows = Rows(
        ends=lengths.cumsum(0).int(),
        counts=COUNTS,
        inputs=torch.randint(V, (total,), generator=generator).int(),
        positions=torch.cat([torch.arange(10 * i, 10 * i + n + 1) for i, n in enumerate(COUNTS)]),
        slots=torch.tensor(SLOTS),
    )
    return rows, 2 * torch.randn(total, V, generator=generator), torch.randn(9, 5, V, generator=generator)


@pytest.mark.parametrize("with_bonus", [False, True], ids=["own row", "vLLM's bonus"])
@pytest.mark.parametrize(
    ("numbers", "rule", "with_q", "temperature"),
    [
        ([0, 1, 2, 3, 4], Lossless(), True, 0.7), ([0, 1, 2, 3, 4], TopK(k=3), False, 0.7),
        ([4, 2], Lossless(), True, 0.0), ([4, 2], Typical(epsilon=0.3), False, 0.0), ([1], TopK(k=3), True, 0.7),
    ],
    ids=str,
)  # fmt: skip
def test_each_request_gets_the_decision_that_it_gets_alone(
    numbers: list[int], rule: Acceptor, with_q: bool, temperature: float, with_bonus: bool
):
    rows, logits, table = random_rows()
    q = rows.draft_probs(table, torch.full((len(COUNTS),), temperature)) if with_q else None
    do_sample = temperature > 0
    step = rows.step(logits, q)
    if with_bonus:
        step = replace(step, logits=logits[rows.drafted()[0]], bonus=torch.arange(len(COUNTS)))
    output, _ = decided(step, rule, numbers, do_sample)
    width = max(COUNTS[number] for number in numbers)
    for at, number in enumerate(numbers):
        start, n = int(rows.ends[number]), COUNTS[number]
        fill = torch.zeros(width - n, V)
        own = Verification(
            tokens=torch.cat([rows.inputs[start + 1 : start + 1 + n].long(), torch.zeros(width - n).long()])[None],
            logits=torch.cat([logits[start : start + n + 1], fill])[None],
            draft_logits=torch.cat([table[SLOTS[number], :n] / (temperature or 1), fill])[None] if with_q else None,
            do_sample=do_sample,
            randomness=KeyedRandomness(keys_of(torch.tensor([number]), rows.positions[start : start + 1])),
            shape=Chain(width, torch.device("cpu"), torch.tensor([n]) if width else None),
        )
        decision = decide(rule, own)
        kept = int(decision.n_accepted)
        end = number if with_bonus and kept == n else int(decision.next_token[0])
        expected = [*own.tokens[0, :kept].tolist(), end]
        assert output[at].tolist() == expected + [NOTHING] * (output.shape[1] - len(expected))


def test_the_token_after_a_whole_draft_is_drawn_from_its_own_row():
    """Two drafts of the target's only tokens are kept, and what follows has the law of the last row."""
    n, requests = 2, 20_000
    p = torch.tensor([0.5, 0.3, 0.2])
    certain = torch.tensor([0.0, -torch.inf, -torch.inf])
    logits = torch.stack([certain, certain, p.log()]).repeat(requests, 1)
    positions = torch.arange(requests * (n + 1))
    ends = torch.arange(0, requests * (n + 1) + 1, n + 1)
    rows = Rows(ends, [n] * requests, torch.zeros_like(positions), positions, torch.arange(requests))
    output, _ = decided(rows.step(logits), Lossless(), do_sample=True)
    assert (output[:, :n] == 0).all()
    share = output[:, n].bincount(minlength=3) / requests
    assert (share - p).abs().max() < 4.5 * (0.25 / requests) ** 0.5


def test_states_belong_to_their_rows():
    """A head that reads the sign of a state lets exactly the tokens after positive states stay."""
    rows, logits, _ = random_rows()
    lenient = [number % 2 == 0 for number in range(5)]
    states = torch.cat([torch.full((n + 1, 1), 9.0 if yes else -9.0) for n, yes in zip(COUNTS, lenient, strict=True)])
    model = ModelIdentity("org/llama", None, "LlamaForCausalLM", hidden_size=1, vocab_size=V)
    config = JudgeConfig(target=model, draft=model, task="none", threshold=0.5)
    rule = Judge(JudgeHead(config, weight=torch.tensor([-1.0]), bias=0.0), threshold=0.5)
    step = rows.step(logits, states=states)
    output, decision = decided(step, rule)
    lossless, _ = decided(step, Lossless())
    assert decision.n_accepted.tolist() == [n if yes else 0 for n, yes in zip(COUNTS, lenient, strict=True)]
    assert output[1].tolist() == lossless[1].tolist()


def test_draws_follow_from_seed_and_position():
    seeds, positions = torch.tensor([1, 1, 2]), torch.tensor([5, 6, 5])
    u = KeyedRandomness(keys_of(seeds, positions)).uniform((3, 4), torch.device("cpu"))
    assert len(u.unique()) == 12
    again = KeyedRandomness(keys_of(seeds[2:], positions[2:])).uniform((1, 4), torch.device("cpu"))
    assert (again == u[2:]).all()
    assert seed_of("a", 0) == seed_of("a", 0) != seed_of("b", 0) != seed_of("b", 1)


def test_draws_are_uniform_and_independent():
    randomness = KeyedRandomness(keys_of(torch.zeros(100_000, dtype=torch.long), torch.arange(100_000)))
    u, w = (randomness.uniform((100_000, 2), torch.device("cpu")) for _ in range(2))
    cells = ((u[:, 0] * 10).long() * 10 + (w[:, 1] * 10).long()).bincount(minlength=100)
    assert chi_square_p(cells.numpy(), np.full(100, 0.01)) > 1e-5
    weights = torch.tensor([0.0, 0.5, 0.0, 0.2, 0.3]).expand(100_000, -1)
    assert chi_square_p(randomness.categorical(weights).bincount(minlength=5).numpy(), weights[0].numpy()) > 1e-5
    mask = randomness.keep_mask((100_000, 3), 0.25, u)
    assert abs((mask == 0).float().mean() - 0.25) < 0.005
    assert abs(mask.mean() - 1) < 0.01
