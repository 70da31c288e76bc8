"""Model runner V2's sampler with vLLM's kernels, which need a GPU, replaced by their definitions.

The runner as a whole is tested with interpreted kernels, which take long: see :mod:`tests.vllm.test_runner_v2_whole`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from vllm.v1.worker.gpu.spec_decode import rejection_sampler as theirs

from hf_lossy_assist.errors import LossyUnsupportedError
from hf_lossy_assist.integrations.vllm.inside.sampler_v2 import LossySamplerV2
from hf_lossy_assist.integrations.vllm.settings import Drafting, EngineSettings

V, GAMMA, SIZE = 11, 3, 8
COUNTS = {"a": 3, "b": 0, "c": 2, "d": 3}
SLOTS = {"a": 5, "b": 1, "c": 0, "d": 6}
OWN = 10
"""What the stand-in for vLLM's own rejection sampler answers."""


@pytest.fixture(autouse=True)
def kernels(monkeypatch):
    def gather(ids: Tensor, positions: Tensor, indices: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        return ids[indices].clone(), positions[indices].clone()

    def rejection_sample(logits: Tensor, q: Any, tokens: Tensor, ends: Tensor, *_: Any, **__: Any) -> Any:
        n = len(ends) - 1
        return torch.full((n, GAMMA + 1), OWN), torch.ones(n, dtype=torch.int32)

    monkeypatch.setattr(theirs, "gather_draft_sampled", gather)
    monkeypatch.setattr(theirs, "rejection_sample", rejection_sample)
    monkeypatch.setattr(theirs, "get_num_sampled_and_rejected", lambda n, *_: (n, n))


class Runner(SimpleNamespace):
    """What the sampler asks of vLLM's runner."""

    def __init__(self, temperature: float = 0.0) -> None:
        temperatures = torch.full((SIZE,), temperature)
        states = SimpleNamespace(
            temperature=SimpleNamespace(gpu=temperatures),
            seeds=SimpleNamespace(gpu=torch.arange(SIZE)),
            max_num_logprobs=lambda _: -1,
        )

        def apply(logits: Tensor, expanded: Tensor, *_: Any) -> Tensor:
            return logits / torch.where(temperatures > 0, temperatures, 1.0)[expanded, None]

        super().__init__(
            sampler=SimpleNamespace(
                sampling_states=states,
                apply_sampling_params=apply,
                compute_nans=False,
                use_fp64_gumbel=False,
                return_sampling_mask=False,
                logprobs_mode="raw_logprobs",
                req_states=SimpleNamespace(prefill_len=SimpleNamespace(gpu=None)),
            ),
            speculative_config=SimpleNamespace(
                num_speculative_tokens=GAMMA,
                rejection_sample_method="standard",
                enable_adaptive_verification=False,
                fly_entropy_threshold=0.3,
                fly_entropy_top_k=3,
            ),
            device=torch.device("cpu"),
            max_num_reqs=SIZE,
            model_config=SimpleNamespace(seed=0),
            model=SimpleNamespace(compute_logits=lambda states: states @ torch.eye(4, V)),
            model_state=SimpleNamespace(add_request=lambda *_: None),
            finish_requests=lambda _: None,
            req_states=SimpleNamespace(prompt_len=SimpleNamespace(np=np.full(SIZE, 4))),
            batch_sharder=None,
            vllm_config=SimpleNamespace(watermark_config=None),
        )


def sampler_of(runner: Runner, lossy: dict[str, Any], without: str = "") -> LossySamplerV2:
    settings = EngineSettings.read(lossy, Drafting("draft_model", GAMMA, keeps_probs=True, texts_on_host=False))
    sampler = LossySamplerV2(runner, settings, None)
    for id, slot in SLOTS.items():
        extra = None if id in without or "mode" in lossy else {"lossy_mode": "topk", "lossy_config": {"k": V}}
        params = SimpleNamespace(temperature=float(runner.sampler.sampling_states.temperature.gpu[slot]), seed=slot)
        params.extra_args = extra
        runner.model_state.add_request(slot, SimpleNamespace(req_id=id, sampling_params=params))
    sampler.start_step()
    runner.model.compute_logits(torch.zeros(sum(COUNTS.values()) + len(COUNTS), 4))
    return sampler


def batch() -> tuple[Tensor, SimpleNamespace, Tensor]:
    """p's logits, vLLM's batch, and the drafts' logits."""
    generator = torch.Generator().manual_seed(0)
    lengths = [n + 1 for n in COUNTS.values()]
    total, slots = sum(lengths), list(SLOTS.values())
    ends = np.array([0, *np.cumsum(lengths)])
    batch = SimpleNamespace(
        req_ids=list(COUNTS),
        num_reqs=len(COUNTS),
        idx_mapping=torch.tensor(slots),
        idx_mapping_np=np.array(slots),
        expanded_idx_mapping=torch.tensor(slots).repeat_interleave(torch.tensor(lengths)),
        expanded_local_pos=torch.cat([torch.arange(n) for n in lengths]),
        input_ids=torch.randint(V, (total,), generator=generator).int(),
        positions=torch.cat([torch.arange(20, 20 + n) for n in lengths]),
        logits_indices=torch.arange(total),
        cu_num_logits=torch.tensor(ends).int(),
        cu_num_logits_np=ends,
        seq_lens=torch.zeros(len(COUNTS)),
        seq_lens_cpu_upper_bound=torch.zeros(len(COUNTS)),
    )
    return torch.randn(total, V, generator=generator), batch, torch.randn(SIZE, GAMMA, V, generator=generator)


def kept(output: Any) -> list[list[int]]:
    return [row[:n] for row, n in zip(output.sampled_token_ids.tolist(), output.num_sampled.tolist(), strict=True)]


def greedy(logits: Tensor, x: SimpleNamespace) -> list[list[int]]:
    """The target's own greedy tokens for as long as the draft agrees, and one more."""
    texts = []
    for start, end in zip(x.cu_num_logits_np[:-1], x.cu_num_logits_np[1:], strict=True):
        best, drafted, text = logits[start:end].argmax(-1).tolist(), x.input_ids[start + 1 : end].tolist(), []
        for token in best:
            text.append(token)
            if len(text) > len(drafted) or drafted[len(text) - 1] != token:
                break
        texts.append(text)
    return texts


@pytest.mark.parametrize("rows", [100, 7, 4], ids=lambda n: f"{n} rows a chunk")
def test_requests_of_a_rule_and_without_share_a_batch(rows, monkeypatch):
    monkeypatch.setattr(theirs, "get_max_chunk_logits", lambda _: rows)
    logits, x, q = batch()
    sampler = sampler_of(Runner(), {}, without="c")
    texts = dict(zip(COUNTS, kept(sampler(logits, x, q)), strict=True))
    assert texts["c"] == [OWN]
    for id, start in zip(COUNTS, x.cu_num_logits_np, strict=False):
        if id != "c":
            end = start + COUNTS[id]
            assert texts[id] == [*x.input_ids[start + 1 : end + 1].tolist(), int(logits[end].argmax())]


@pytest.mark.parametrize("rows", [100, 4], ids=lambda n: f"{n} rows a chunk")
def test_dropped_heads_read_the_states_of_their_rows(rows, monkeypatch):
    """Heads without dropout are the head itself, whose draws choose its own likeliest tokens."""
    monkeypatch.setattr(theirs, "get_max_chunk_logits", lambda _: rows)
    runner = Runner()
    _, x, q = batch()
    states = 5 * torch.randn(len(x.input_ids), 4, generator=torch.Generator().manual_seed(2))
    sampler = sampler_of(runner, {"mode": "dropmatch", "config": {"dropout": 1e-9, "criterion": "naive"}})
    logits = runner.model.compute_logits(states)
    for start, end in zip(x.cu_num_logits_np[:-1], x.cu_num_logits_np[1:], strict=True):
        x.input_ids[start + 1 : end] = logits[start : end - 1].argmax(-1).int()
    x.input_ids[2] = (x.input_ids[2] + 1) % V  # a draft that ends early
    texts = kept(sampler(logits, x, q))
    assert texts == greedy(logits, x)
    assert [len(text) for text in texts] == [2, 1, 3, 4]


def test_a_grammar_ends_drafts():
    logits, x, q = batch()
    invalid = torch.zeros(len(logits), dtype=torch.bool)
    invalid[2] = True
    texts = kept(sampler_of(Runner(), {"mode": "topk", "config": {"k": V}})(logits, x, q, invalid))
    assert len(texts[0]) == 2
    assert texts[0][0] == x.input_ids[1]


def test_requests_are_forgotten_when_they_end_and_not_when_they_are_preempted():
    runner = Runner()
    sampler = sampler_of(runner, {"mode": "lossless"})
    runner.finish_requests(SimpleNamespace(finished_req_ids={"a"}, preempted_req_ids={"b"}))
    assert set(sampler.known) == {"b", "c", "d"}


def test_batches_of_unknown_requests_are_vllm_s_own():
    logits, x, q = batch()
    sampler = sampler_of(Runner(), {"mode": "lossless"})
    x.req_ids = ["warm-up"] * len(COUNTS)
    assert kept(sampler(logits, x, q)) == [[OWN]] * len(COUNTS)


@pytest.mark.parametrize("name", ["enable_adaptive_verification", "enable_batch_sharded_sampling", "watermark_config"])
def test_what_moves_rows_is_refused(name):
    runner = Runner()
    runner.speculative_config.enable_adaptive_verification = name == "enable_adaptive_verification"
    runner.batch_sharder = object() if name == "enable_batch_sharded_sampling" else None
    runner.vllm_config.watermark_config = object() if name == "watermark_config" else None
    with pytest.raises(LossyUnsupportedError, match=name):
        sampler_of(runner, {"mode": "lossless"})
