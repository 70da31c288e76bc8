"""The requests that were given a draft, and the distributions that it was drawn from."""

from __future__ import annotations

from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from ....errors import LossyUnsupportedError


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
