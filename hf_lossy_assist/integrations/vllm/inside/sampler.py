"""The rejection sampler of vLLM's model runner V1, with rules in place of its own where requests ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

import torch
from torch import Tensor
from vllm.utils.torch_utils import async_tensor_h2d
from vllm.v1.outputs import SamplerOutput
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p
from vllm.v1.sample.rejection_sampler import RejectionSampler, rejection_sample
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from ....errors import LossyUnsupportedError
from ..rounds import NOTHING, EngineStep
from ..settings import EngineSettings
from .rules import Rules


class LossySamplerV1(RejectionSampler):
    """Decides each group of requests by its rule; requests without a rule, and steps without one, are vLLM's own."""

    def __init__(self, runner: Any, settings: EngineSettings, tokenizer: Any) -> None:
        super().__init__(runner.sampler, runner.speculative_config, runner.device)
        self.runner = runner
        self.proposals = Proposals(runner, settings.drafting.keeps_probs)
        self.rules = Rules(runner, settings, tokenizer)

    def start_step(self) -> None:
        """Say that the batch is about to be decided."""
        self.proposals.start_step()

    def forward(
        self,
        metadata: SpecDecodeMetadata,
        draft_probs: Tensor | None,
        logits: Tensor,
        sampling_metadata: SamplingMetadata,
    ) -> SamplerOutput:
        ids = self.runner.input_batch.req_ids
        dummy = len(ids) != len(metadata.num_draft_tokens)
        if dummy or metadata.max_spec_len == 0:
            return super().forward(metadata, draft_probs, logits, sampling_metadata)
        missing = self.proposals.missing(metadata.num_draft_tokens)
        groups, others = self.rules.requests.groups(ids, self.runner.requests, missing)
        if not groups:
            return super().forward(metadata, draft_probs, logits, sampling_metadata)
        # As vLLM's own, up to the rule.
        bonus = self.sampler(
            logits=logits[metadata.bonus_logits_indices],
            sampling_metadata=replace(sampling_metadata, max_num_logprobs=-1),
            predict_bonus_token=True,
            logprobs_mode_override="processed_logits" if self.is_processed_logprobs_mode else "raw_logits",
        )
        raw = logits[metadata.target_logits_indices].to(torch.float32)
        asked = sampling_metadata.max_num_logprobs is not None  # for log-probabilities, some of them of raw logits
        own = raw.clone() if asked and not self.is_processed_logprobs_mode else raw
        processed = self._processed(own, metadata, sampling_metadata)
        step = self._step(metadata, draft_probs, processed, bonus.sampled_token_ids, sampling_metadata)
        output = torch.full((len(ids), metadata.max_spec_len + 1), NOTHING, dtype=torch.int32, device=processed.device)
        self.rules.decide(groups, step, output)
        if others:
            self._decide_others(others, output, step, sampling_metadata)
        logprobs = None
        if asked:
            logprobs = self._get_logprobs_tensors(
                sampling_metadata.max_num_logprobs,
                metadata,
                logits,
                processed if self.is_processed_logprobs_mode else raw,
                bonus.logprobs_tensors.logprobs,
                output,
            )
        return SamplerOutput(sampled_token_ids=output, logprobs_tensors=logprobs)

    def _processed(self, logits: Tensor, metadata: SpecDecodeMetadata, sampling: SamplingMetadata) -> Tensor:
        logits = self.apply_logits_processors(logits, sampling, metadata)
        if sampling.all_greedy:
            return logits

        # In place of vLLM's function, which on CPUs divides by memory that nobody has written.
        def spread(values: Tensor | None) -> Tensor | None:
            return None if values is None else values.repeat_interleave(_lengths(metadata), output_size=len(logits))

        temperature = spread(sampling.temperature.masked_fill(sampling.temperature == 0, 1.0))
        return apply_top_k_top_p(logits.div_(temperature[:, None]), spread(sampling.top_k), spread(sampling.top_p))

    def _step(
        self,
        metadata: SpecDecodeMetadata,
        draft_probs: Tensor | None,
        processed: Tensor,
        bonus: Tensor,
        sampling_metadata: SamplingMetadata,
    ) -> EngineStep:
        def process(logits: Tensor) -> Tensor:
            return self._processed(logits, metadata, sampling_metadata)

        newest = metadata.logits_indices[metadata.bonus_logits_indices] - _lengths(metadata)
        return EngineStep(
            metadata.draft_token_ids,
            processed,
            metadata.cu_num_draft_tokens,
            metadata.num_draft_tokens,
            self.runner.positions[newest].long(),
            bonus[:, 0],
            draft_probs,
            self.rules.states,
            self.rules.dropped(metadata.target_logits_indices, process, lambda: processed),
            self._texts,
        )

    def _texts(self, rows: Sequence[int]) -> Tensor:
        batch = self.runner.input_batch
        lengths = torch.as_tensor(batch.num_tokens_no_spec[list(rows)], dtype=torch.long)[:, None]
        width = int(lengths.max())
        columns = torch.arange(width) - (width - lengths)
        ids = batch.token_ids_cpu_tensor[list(rows)].long().gather(1, columns.clamp(min=0))
        return async_tensor_h2d(ids.masked_fill(columns < 0, NOTHING), self.runner.device)

    def _decide_others(self, rows: list[int], output: Tensor, step: EngineStep, sampling: SamplingMetadata) -> None:
        """Leave requests without a rule to vLLM's own sampler, which sees them alone."""
        counts = [step.counts[row] for row in rows]
        if not any(counts):
            output[async_tensor_h2d(rows, output.device), 0] = step.bonus[rows].int()
            return
        starts = torch.tensor([0, *step.counts]).cumsum(0).tolist()
        flat = [i for row in rows for i in range(starts[row], starts[row] + step.counts[row])]
        index, at = async_tensor_h2d(rows, output.device), async_tensor_h2d(flat, output.device)
        ends = async_tensor_h2d(torch.tensor(counts).cumsum(0).int(), output.device)
        own = replace(
            sampling,
            temperature=None if sampling.temperature is None else sampling.temperature[index],
            generators={i: sampling.generators[row] for i, row in enumerate(rows) if row in sampling.generators},
        )
        q = None if step.draft_probs is None else step.draft_probs[at].contiguous()
        bonus = step.bonus[index][:, None].contiguous()
        tokens = rejection_sample(
            step.tokens[at], counts, max(counts), ends, q, step.logits[at], bonus, own,
            use_fp64_gumbel=self.use_fp64_gumbel,
        )  # fmt: skip
        output[index, : tokens.shape[1]] = tokens


def _lengths(metadata: SpecDecodeMetadata) -> Tensor:
    return metadata.cu_num_draft_tokens.diff(prepend=metadata.cu_num_draft_tokens.new_zeros(1))


class Proposals:
    """Remembers a draft from the step that proposes it to the step that decides it.

    If a step leaves a request out, vLLM forgets its probabilities and those of all requests beside it. Near the models'
    longest text it proposes nothing, and fills drafts with zeros, which no rule may keep.
    """

    def __init__(self, runner: Any, keeps_probs: bool) -> None:
        self._runner = runner
        self._propose = runner.drafter.propose
        self._probs: dict[str, Tensor | None] = {}  # of requests that wait, (γ, V)
        self._decided: dict[str, Tensor | None] = {}  # of those that this step decides
        self._sample = getattr(runner.drafter, "_sample_draft_tokens", None)
        runner.drafter.propose = self._noted
        if keeps_probs and self._sample is None:
            raise LossyUnsupportedError(
                "`draft_sample_method` in `--speculative-config` is 'probabilistic', but this drafter has no "
                f"probabilities ({type(runner.drafter).__name__}); leave it out"
            )
        if keeps_probs:
            runner.drafter._sample_draft_tokens = self._sampled
            runner._get_spec_decode_draft_probs = self._of_step

    def start_step(self) -> None:
        """Say that the batch is about to be decided."""
        waiting, batch = self._probs, self._runner.input_batch.req_ids
        self._decided = {id: waiting.pop(id) for id in batch if id in waiting}
        for id in [id for id in waiting if id not in self._runner.requests]:
            del waiting[id]

    def missing(self, counts: list[int]) -> frozenset[int]:
        """Return the rows whose drafts nobody has proposed."""
        ids = self._runner.input_batch.req_ids
        return frozenset(i for i, (id, n) in enumerate(zip(ids, counts, strict=True)) if n and id not in self._decided)

    def _noted(self, *args: Any, **kwargs: Any) -> Any:
        tokens = self._propose(*args, **kwargs)
        probs = getattr(self._runner.drafter, "take_last_draft_probs", lambda: None)()
        self._probs |= zip(self._runner.input_batch.req_ids, repeat(None) if probs is None else probs, strict=False)
        return tokens

    def _sampled(self, states: Tensor, sampling: Any) -> tuple[Tensor, Tensor | None]:
        """Keep the draft's probabilities where all requests decode greedily, and draw by seeds: vLLM does neither."""
        if not sampling.all_greedy:
            tokens, probs = self._sample(states, sampling)
            for row, generator in sampling.generators.items() if len(probs) == len(sampling.temperature) else ():
                tokens[row] = (probs[row] / torch.empty_like(probs[row]).exponential_(generator=generator)).argmax()
            return tokens, probs
        logits = self._runner.drafter.model.compute_logits(states)
        return logits.argmax(-1), logits.softmax(-1, dtype=torch.float32)

    def _of_step(self, metadata: Any) -> Tensor | None:
        """Return ``(T, V)``; a draft that nobody has proposed is certain of its tokens."""
        ids, counts = self._runner.input_batch.req_ids, metadata.num_draft_tokens
        rows = [self._decided.get(id) for id, n in zip(ids, counts, strict=True) if n]
        known = next((row for row in rows if row is not None), None)
        if known is None:
            return None
        filler = known.new_zeros(known.shape).index_fill_(-1, metadata.draft_token_ids.new_zeros(1).long(), 1.0)
        lengths = [n for n in counts if n]
        return torch.cat([(filler if row is None else row)[:n] for row, n in zip(rows, lengths, strict=True)])
