"""vLLM's tensors become a verification, and the decision becomes vLLM's output; vLLM itself is not needed."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from hf_lossy_assist.acceptors import Acceptor, DroppedHeads, Lossless, Regret, TopK, decide
from hf_lossy_assist.call.config import RunConfig
from hf_lossy_assist.core.limits import Limits
from hf_lossy_assist.core.messages import Verification
from hf_lossy_assist.core.shapes import Chain
from hf_lossy_assist.integrations.vllm.randomness import KeyedRandomness, keys_of, seed_of
from hf_lossy_assist.integrations.vllm.rounds import (
    NOTHING,
    EngineStep,
    Group,
    RequestRound,
    RoundCounts,
    Tables,
    decide_group,
)
from tests.acceptors.fixtures import P, Q, chi_square_p, law_of
from tests.acceptors.table import ROWS, Row, one_hot, row_id

SAMPLING = pytest.mark.parametrize("do_sample", [False, True], ids=["greedy", "sampling"])
AHEAD = {"sprinter"}
REQUESTS = 40_000
V = len(P)


def group_of(config: RunConfig, rows: list[int], do_sample: bool, everyone: bool = True, seed: int = 0) -> Group:
    index = torch.tensor(rows)
    return Group(
        config,
        do_sample,
        config.limits.bind(None),
        rows,
        None if everyone else index,
        seeds=index + seed,
        prompts=torch.ones_like(index),
        slots=index,
    )


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
    group = group_of(RunConfig(rule), list(range(REQUESTS)), do_sample)
    output, decision = decide_group(group, step, Tables(REQUESTS, torch.device("cpu")))
    out = output[:, 0].numpy()
    assert (output[:, 1] == torch.where(decision.complete, 0, NOTHING)).all()
    kept = row.acceptance(law, row.config).astype(float)
    drafted = law.q if do_sample else one_hot(law.q.argmax(), V)
    rejected = drafted * (1 - kept)
    expected = drafted * kept + rejected @ np.broadcast_to(row.correction(law), (V, V))
    if rule.dropped_heads:  # the oracle is itself a simulation: compare within both errors
        share = np.bincount(out, minlength=V) / REQUESTS
        assert np.abs(share - expected).max() < 4.5 * math.sqrt(0.5 / REQUESTS)
    else:
        assert chi_square_p(np.bincount(out, minlength=V), expected) > 1e-5


@SAMPLING
@pytest.mark.parametrize("with_q", [False, True], ids=["point mass", "q"])
@pytest.mark.parametrize("rule", [Lossless(), TopK(k=3)], ids=repr)
def test_padded_rows_get_the_decision_that_they_get_alone(rule: Acceptor, with_q: bool, do_sample: bool):
    counts, everyone = [3, 0, 5, 1, 5], list(range(5))
    step = step_of(counts, with_q=with_q)
    output, _ = decide_group(group_of(RunConfig(rule), everyone, do_sample), step, Tables(5, torch.device("cpu")))
    for row, (start, n) in enumerate(zip(step.starts.tolist(), counts, strict=True)):
        end = start + n
        own = Verification(
            tokens=step.tokens[None, start:end].long(),
            logits=torch.cat([step.logits[start:end], torch.zeros(1, V)])[None],
            draft_logits=step.draft_probs[None, start:end].log() if with_q else None,
            do_sample=do_sample,
            randomness=KeyedRandomness(keys_of(torch.tensor([row]), torch.tensor([0]))),
        )
        decision = decide(rule, own)
        kept = int(decision.n_accepted)
        end_token = step.bonus[row] if kept == n else decision.next_token[0]
        expected = [*own.tokens[0, :kept].tolist(), int(end_token)]
        assert output[row].tolist() == expected + [NOTHING] * (max(counts) + 1 - len(expected))


@SAMPLING
def test_a_request_s_tokens_do_not_depend_on_the_requests_beside_it(do_sample: bool):
    step, tables = step_of([3, 2, 4]), Tables(3, torch.device("cpu"))
    config = RunConfig(TopK(k=2))
    together, _ = decide_group(group_of(config, [0, 1, 2], do_sample), step, tables)
    for row in range(3):
        alone, _ = decide_group(group_of(config, [row], do_sample, everyone=False), step, tables)
        width = alone.shape[1]
        assert together[row, :width].tolist() == alone[0].tolist()
        assert (together[row, width:] == NOTHING).all()


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


def test_first_tokens_are_lossless_and_the_budget_lasts_for_the_whole_text():
    tables = Tables(2, torch.device("cpu"))
    lossy = RunConfig(TopK(k=V))  # keeps every token
    strict = replace(lossy, limits=Limits(strict_first_n=2))
    step = step_of([4, 4], with_q=False)
    best = step.logits.argmax(-1)
    step = replace(step, tokens=((best + 1) % V).int())
    output, _ = decide_group(group_of(strict, [0, 1], False), step, tables)
    assert output[:, 0].tolist() == best[[0, 4]].tolist(), "the first token is the target's"
    # The prompt has one token, so position 2 is that of the second generated one.
    later = replace(step, positions=torch.full((2,), 2))
    output, _ = decide_group(group_of(strict, [0, 1], False), later, tables)
    assert output[:, :4].flatten().tolist() == step.tokens.tolist()
    assert tables.lossy.tolist() == [4, 4]
    budget = replace(lossy, limits=Limits(budget=0.5))
    output, _ = decide_group(group_of(budget, [0, 1], False), replace(step, positions=torch.tensor([4, 9])), tables)
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
    group = group_of(RunConfig(TopK(k=V)), [0, 1], do_sample)
    output, _ = decide_group(group, cut, Tables(2, torch.device("cpu")))
    assert (output != NOTHING).sum(-1).tolist() == [3, 2]
    assert output[0, :2].tolist() == step.tokens[:2].tolist()
    if not do_sample:
        assert [int(output[0, 2]), int(output[1, 1])] == step.logits[[2, 5]].argmax(-1).tolist()


def test_a_scope_is_read_from_the_text():
    scope = {"start": 5, "end": 6}
    config = RunConfig(TopK(k=V), limits=Limits(scope=scope))
    step = step_of([2, 2], with_q=False)
    wrong = ((step.logits.argmax(-1) + 1) % 5).int()
    texts = torch.tensor([[-1, 5, 1], [5, 6, 1]])
    step = replace(step, tokens=wrong, texts=lambda rows: texts[list(rows)])
    output, _ = decide_group(group_of(config, [0, 1], False), step, Tables(2, torch.device("cpu")))
    assert output[0, :2].tolist() == wrong[:2].tolist()
    assert output[1, 1] == NOTHING


def test_a_charge_is_remembered():
    tables, config = Tables(3, torch.device("cpu")), RunConfig(Regret(total_regret=1.0, local_regret=1.0))
    step = step_of([3, 3, 3], with_q=False)
    likely = step.logits.topk(2, -1).indices[:, 1].int()
    decide_group(group_of(config, [0, 1, 2], False), replace(step, tokens=likely), tables)
    first = tables.charged.clone()
    assert (first > 0).any()
    decide_group(group_of(config, [0, 1, 2], False), replace(step, tokens=likely), tables)
    assert (tables.charged >= first).all()
    assert (tables.charged <= 1).all()


def test_counts_are_those_of_the_output():
    rule = TopK(k=V)
    step = step_of([4, 2], with_q=False)
    _, decision = decide_group(group_of(RunConfig(rule), [0, 1], False), step, Tables(2, torch.device("cpu")))
    rounds = RoundCounts.of(decision, ["a", "b"], [4, 2]).by_request()
    lossless = [int(yes) for yes in (step.tokens == step.logits.argmax(-1))]
    assert rounds["a"] == RequestRound(4, 4, lossless[:4], {"topk": [1] * 4})
    totals: dict = {}
    rounds["a"].add_to(totals, committed=3)
    rounds["b"].add_to(totals, committed=3)
    lossy = 5 - sum(lossless[:3]) - sum(lossless[4:])
    assert totals == {"drafted": 6, "accepted": 5, "accepted_lossy": lossy, "accepted_by": {"topk": 5}}


def test_a_chain_s_lengths_may_stay_on_their_device():
    lengths = torch.tensor([2, 0])
    shape = Chain(3, lengths.device, lengths)
    assert shape.left.tolist() == Chain(3, lengths.device, (2, 0)).left.tolist()
    assert shape.drafted.tolist() == [[True, True, False], [False] * 3]
