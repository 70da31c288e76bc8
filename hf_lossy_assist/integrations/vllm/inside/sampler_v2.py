"""The rejection sampler of vLLM's model runner V2, with rules in place of its own where requests ask for them.

It was tested on CPUs, where Triton interprets vLLM's kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

from ....errors import LossyUnsupportedError
from ..rounds import NOTHING, Rows
from ..settings import EngineSettings
from .rules import Rules


@dataclass(frozen=True)
class Known:
    """The properties of a request that rules read."""

    sampling_params: Any
    num_prompt_tokens: int


class LossySamplerV2(RejectionSampler):
    """Decides each group of requests by its rule; requests without a rule, and steps without one, are vLLM's own.

    It takes the place of the runner's once the models are loaded: vLLM's own hook, ``ModelState.custom_sampler``, would
    need a subclass of every state.
    """

    def __init__(self, runner: Any, settings: EngineSettings, tokenizer: Any) -> None:
        super().__init__(runner.sampler, runner.speculative_config, runner.device)
        _check_runner(runner)
        self.runner = runner
        self.rules = Rules(runner, settings, tokenizer)
        self.known: dict[str, Known] = {}
        self._add, self._finish = runner.model_state.add_request, runner.finish_requests
        runner.model_state.add_request, runner.finish_requests = self._added, self._finished
        self._ids: dict[int, str] = {}
        self._counts: dict[int, int] = {}
        self._start = 0

    def start_step(self) -> None:
        """Say that the batch is about to be decided."""

    def _added(self, index: int, request: Any) -> None:
        length = int(self.runner.req_states.prompt_len.np[index])
        self.known[request.req_id] = Known(request.sampling_params, length)
        self._add(index, request)

    def _finished(self, scheduler_output: Any) -> None:
        """Forget requests that have ended; preempted ones stay."""
        for id in scheduler_output.finished_req_ids:
            self.known.pop(id, None)
        self._finish(scheduler_output)

    def __call__(self, logits: Tensor, input_batch: Any, *args: Any, **kwargs: Any) -> Any:
        slots = input_batch.idx_mapping_np.tolist()
        self._ids = dict(zip(slots, input_batch.req_ids, strict=True))
        self._counts = dict(zip(slots, (np.diff(input_batch.cu_num_logits_np) - 1).tolist(), strict=True))
        self._start = 0
        return super().__call__(logits, input_batch, *args, **kwargs)

    def _verify(self, logits: Tensor, draft_logits: Tensor | None, *places: Any) -> tuple[Tensor, Tensor, Tensor]:
        (
            draft_sampled, pos, cu_num_logits, idx_mapping, idx_mapping_np, expanded_idx_mapping, expanded_local_pos,
            seq_lens_upper_bound_np, verify_draft_sampled,
        ) = places  # fmt: skip
        first, self._start = self._start, self._start + len(logits)
        slots = idx_mapping_np.tolist()
        ids = [self._ids[slot] for slot in slots]
        dummy = any(id not in self.known for id in ids)
        groups, others = ([], []) if dummy else self.rules.requests.groups(ids, self.known)

        def process(logits: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
            return self.sampler.apply_sampling_params(
                logits, expanded_idx_mapping[rows], idx_mapping, idx_mapping_np, pos[rows], draft_sampled[rows],
                expanded_local_pos[rows], seq_lens_upper_bound_np,
            )  # fmt: skip

        if others or not groups:
            processed, sampled, num_sampled = super()._verify(logits, draft_logits, *places)
            if not groups:
                return processed, sampled, num_sampled
        else:
            processed = process(logits)
            size = len(slots), self.num_speculative_steps + 1
            sampled = torch.full(size, NOTHING, device=logits.device)
            num_sampled = sampled.new_zeros(len(slots), dtype=torch.int32)
        counts = [self._counts[slot] for slot in slots]
        rows = Rows(cu_num_logits, counts, verify_draft_sampled, pos, idx_mapping.long())
        q = None
        if draft_logits is not None:
            q = rows.draft_probs(draft_logits, self.sampler.sampling_states.temperature.gpu[idx_mapping])
        drafted, _ = rows.drafted()
        step = rows.step(
            processed,
            q,
            states=self.rules.states[first : first + len(logits)],
            dropped=self.rules.dropped(
                drafted + first, lambda logits: process(logits, drafted), lambda: processed[drafted]
            ),
        )
        for group, kept in zip(groups, self.rules.decide(groups, step, sampled), strict=True):
            num_sampled[group.index] = kept.int() + 1
        return processed, sampled, num_sampled


def _check_runner(runner: Any) -> None:
    """Refuse what would put other rows before the rules than they expect."""
    for name, on in (
        ("enable_adaptive_verification", runner.speculative_config.enable_adaptive_verification),
        ("enable_batch_sharded_sampling", runner.batch_sharder is not None),
        ("watermark_config", runner.vllm_config.watermark_config is not None),
    ):
        if on:
            raise LossyUnsupportedError(
                f"`{name}` of vLLM can't be used with `lossy` in `--additional-config`; turn it off"
            )
