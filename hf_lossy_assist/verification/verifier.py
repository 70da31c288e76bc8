"""From a forward's output to what rules read."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedModel

from ..acceptors import Acceptor
from ..messages import Draft, Verification
from ..sampling import Randomness
from .lm_head_hook import LMHeadHook, lm_head_hook
from .processing import process, process_paths


@dataclass(eq=False)
class Verifier:
    """Says what the target thinks of drafts, of what its forward has returned.

    Attributes
    ----------
    model
        The target.
    processors
        The user's logits processors, warpers included.
    acceptor
        The rule, which declares what it needs to see.
    do_sample
        Whether tokens are drawn.
    randomness
        The run's source of random numbers.
    keep_raw
        Whether the logits before the processors are wanted in the output.
    hook
        Reads the LM head's input, where the rule wants to.
    """

    model: PreTrainedModel
    processors: LogitsProcessorList
    acceptor: Acceptor
    do_sample: bool
    randomness: Randomness
    keep_raw: bool = False
    hook: LMHeadHook | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.acceptor.needs & {"hidden", "dropped_heads"}:
            self.hook = lm_head_hook(self.model, self.randomness, self.acceptor.dropped_heads)

    def watching(self, drafted: int) -> AbstractContextManager[Any]:
        """Inside the block, read the LM head's input in a forward over ``drafted`` tokens, if the rule wants to."""
        return nullcontext() if self.hook is None else self.hook.over(drafted)

    def split(self, logits: Tensor, drafted: int) -> tuple[Tensor, Tensor | None]:
        """Split a forward's logits into clean ``(B, n+1, V)`` and dropped ``(B, K, n, V)`` ones, or None."""
        if self.hook is None:
            return logits[:, -(drafted + 1) :], None
        return self.hook.split(logits, drafted)

    def judge(self, candidate: Tensor, draft: Draft, outputs: Any, sent: int = 0) -> Verification:
        """Process what a forward has returned into what rules read.

        Parameters
        ----------
        candidate
            ``(B, L + n)`` committed and drafted tokens.
        draft
            The proposal, of n tokens.
        outputs
            The forward's own output; its logits are left as they are.
        sent
            How many tokens the forward was over.
        """
        clean, dropped = self.split(outputs.logits, len(draft))
        raw = clean.to(device=candidate.device, dtype=torch.float32)
        # Processors may overwrite what they are given, and the raw logits belong to the caller.
        logits = raw.clone() if self.keep_raw else raw
        return self.judge_logits(candidate, draft, logits, dropped, outputs, raw if self.keep_raw else None, sent)

    def judge_logits(
        self,
        candidate: Tensor,
        draft: Draft,
        logits: Tensor,
        dropped: Tensor | None,
        outputs: Any = None,
        raw: Tensor | None = None,
        sent: int = 0,
    ) -> Verification:
        """Do the same with logits that are split already; ``logits`` ``(B, n + 1, V)`` may be overwritten."""
        paths, centroid = self._process_dropped(candidate, dropped, logits.device)
        return Verification(
            tokens=draft.tokens,
            logits=process(self.processors, candidate, logits),
            draft_logits=draft.logits,
            do_sample=self.do_sample,
            randomness=self.randomness,
            hidden=None if self.hook is None else self.hook.hidden.to(logits.device),
            dropped_logits=paths,
            centroid_logits=centroid,
            draft_hidden=draft.hidden,
            lengths=None if draft.lengths is None else torch.tensor(draft.lengths, device=logits.device),
            outputs=outputs,
            raw_logits=raw,
            sent=sent,
        )

    def _process_dropped(
        self, candidate: Tensor, dropped: Tensor | None, device: torch.device
    ) -> tuple[Tensor | None, Tensor | None]:
        if dropped is None:
            return None, None
        prefix, dropped = candidate[:, :-1], dropped.to(device)
        centroid = process(self.processors, prefix, dropped.mean(1, dtype=torch.float32))
        return process_paths(self.processors, prefix, dropped), centroid
