"""Rows of model runner V2 become a step whose decisions are those that each request gets alone: no vLLM is needed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hf_lossy_assist.acceptors import Acceptor, Judge, Lossless, TopK, Typical, decide
from hf_lossy_assist.call.config import RunConfig
from hf_lossy_assist.core.limits import Limits
from hf_lossy_assist.core.messages import Verification
from hf_lossy_assist.core.shapes import Chain
from hf_lossy_assist.heads import JudgeConfig, JudgeHead, ModelIdentity
from hf_lossy_assist.integrations.vllm.randomness import KeyedRandomness, keys_of
from hf_lossy_assist.integrations.vllm.rounds import NOTHING, Group, Tables, decide_group
from hf_lossy_assist.integrations.vllm.rows import Rows

V, GAMMA, REQUESTS = 23, 5, 9
COUNTS = [3, 0, 5, 1, 5]
SLOTS = [4, 0, 7, 2, 8]


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
    return rows, 2 * torch.randn(total, V, generator=generator), torch.randn(REQUESTS, GAMMA, V, generator=generator)


def group_of(rule: Acceptor, do_sample: bool, numbers: list[int], **limits: int) -> Group:
    index = torch.tensor(numbers)
    config = RunConfig(rule, limits=Limits(**limits))
    everyone = numbers == list(range(len(COUNTS)))
    return Group(
        config,
        do_sample,
        config.limits.bind(None),
        numbers,
        None if everyone else index,
        seeds=index + 100,
        prompts=torch.ones_like(index),
        slots=index,
    )


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("with_q", [False, True], ids=["point mass", "q"])
@pytest.mark.parametrize("rule", [Lossless(), TopK(k=3), Typical(epsilon=0.3)], ids=repr)
@pytest.mark.parametrize("numbers", [[0, 1, 2, 3, 4], [4, 2], [1]], ids=str)
def test_each_request_gets_the_decision_that_it_gets_alone(
    numbers: list[int], rule: Acceptor, with_q: bool, temperature: float
):
    rows, logits, table = random_rows()
    q = rows.draft_probs(table, torch.full((len(COUNTS),), temperature)) if with_q else None
    do_sample = temperature > 0
    step = rows.step(logits, q)
    output, _ = decide_group(group_of(rule, do_sample, numbers), step, Tables(5, torch.device("cpu")))
    width = max(COUNTS[number] for number in numbers)
    for at, number in enumerate(numbers):
        start, n = int(rows.ends[number]), COUNTS[number]
        fill = torch.zeros(width - n, V)
        own = Verification(
            tokens=torch.cat([rows.inputs[start + 1 : start + 1 + n].long(), torch.zeros(width - n).long()])[None],
            logits=torch.cat([logits[start : start + n + 1], fill])[None],
            draft_logits=torch.cat([table[SLOTS[number], :n] / (temperature or 1), fill])[None] if with_q else None,
            do_sample=do_sample,
            randomness=KeyedRandomness(keys_of(torch.tensor([number + 100]), rows.positions[start : start + 1])),
            shape=Chain(width, torch.device("cpu"), torch.tensor([n]) if width else None),
        )
        decision = decide(rule, own)
        kept = int(decision.n_accepted)
        expected = [*own.tokens[0, :kept].tolist(), int(decision.next_token[0])]
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
    index = torch.arange(requests)
    group = replace(
        group_of(Lossless(), True, [0]), rows=index.tolist(), index=None, seeds=index, prompts=index, slots=index
    )
    output, _ = decide_group(group, rows.step(logits), Tables(requests, torch.device("cpu")))
    assert (output[:, :n] == 0).all()
    share = output[:, n].bincount(minlength=3) / requests
    assert (share - p).abs().max() < 4.5 * (0.25 / requests) ** 0.5


def test_a_draft_ends_before_a_token_that_is_forbidden():
    rows, logits, _ = random_rows()
    inputs = rows.inputs.clone()
    inputs[int(rows.ends[2]) + 2] = -1  # the third request's second drafted token
    step = replace(rows, inputs=inputs).step(logits)
    output, decision = decide_group(group_of(TopK(k=V), True, [2]), step, Tables(5, torch.device("cpu")))
    assert decision.n_accepted.tolist() == [1]
    assert output[0, 0] == inputs[int(rows.ends[2]) + 1]
    assert output[0, 1] >= 0
    assert (output[0, 2:] == NOTHING).all()


def test_limits_count_from_the_prompts_end():
    """``strict_first_n`` refuses lossy tokens while the text is young, by positions of the rows."""
    rows, logits, _ = random_rows()
    step = rows.step(logits)
    young, _ = decide_group(group_of(TopK(k=V), False, [0, 2, 4], strict_first_n=1000), step, Tables(5, "cpu"))
    lossless, _ = decide_group(group_of(Lossless(), False, [0, 2, 4]), step, Tables(5, "cpu"))
    lossy, _ = decide_group(group_of(TopK(k=V), False, [0, 2, 4]), step, Tables(5, "cpu"))
    assert young.tolist() == lossless.tolist() != lossy.tolist()


def test_states_belong_to_their_rows():
    """A head that reads the sign of a state lets exactly the tokens after positive states stay."""
    rows, logits, _ = random_rows()
    lenient = [number % 2 == 0 for number in range(5)]
    states = torch.cat([torch.full((n + 1, 1), 9.0 if yes else -9.0) for n, yes in zip(COUNTS, lenient, strict=True)])
    model = ModelIdentity("org/llama", None, "LlamaForCausalLM", hidden_size=1, vocab_size=V)
    config = JudgeConfig(target=model, draft=model, task="none", threshold=0.5)
    rule = Judge(JudgeHead(config, weight=torch.tensor([-1.0]), bias=0.0), threshold=0.5)
    step = rows.step(logits, states=states)
    output, decision = decide_group(group_of(rule, False, list(range(5))), step, Tables(5, torch.device("cpu")))
    lossless, _ = decide_group(group_of(Lossless(), False, list(range(5))), step, Tables(5, torch.device("cpu")))
    assert decision.n_accepted.tolist() == [n if yes else 0 for n, yes in zip(COUNTS, lenient, strict=True)]
    assert output[1].tolist() == lossless[1].tolist()
