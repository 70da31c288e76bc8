"""Verification: one target forward over a draft."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedModel

from ..acceptors import Acceptor
from ..compat import ForwardInputs
from ..messages import Draft, Verification
from ..sampling import Randomness
from .lm_head_hook import HeadTap, head_tap
from .processing import process, process_paths


@dataclass(eq=False)
class Verifier:
    """Runs the target over drafts and says what it thinks of them.

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
    inputs
        Makes the inputs of the target's forwards.
    tap
        Looks at the LM head's input, where the rule wants to.
    sent
        How many tokens the last forward was over.
    """

    model: PreTrainedModel
    processors: LogitsProcessorList
    acceptor: Acceptor
    do_sample: bool
    randomness: Randomness
    keep_raw: bool = False
    inputs: ForwardInputs | None = None
    tap: HeadTap | None = None
    sent: int = 0

    def __post_init__(self) -> None:
        if self.inputs is None:
            self.inputs = ForwardInputs(self.model)
        if self.acceptor.needs & {"hidden", "dropped_heads"}:
            self.tap = head_tap(self.model, self.randomness, self.acceptor.dropped_heads)

    def verify(
        self,
        candidate: Tensor,
        draft: Draft,
        model_kwargs: dict[str, Any],
        *,
        first: bool,
        new_tokens: int | None,
        pending: int = 0,
        last_position: int | None = None,
        overrides: Mapping[str, Any] = MappingProxyType({}),
    ) -> tuple[Verification, Any, Tensor | None]:
        """Run one forward over everything the target has not seen.

        Parameters
        ----------
        candidate
            ``(B, L + n)`` committed and drafted tokens.
        draft
            The proposal to judge.
        model_kwargs
            What ``generate()`` carries from forward to forward: cache, mask, positions.
        first
            Whether this is the run's first forward.
        new_tokens
            How many committed tokens are not in the cache; None sends all.
        pending
            How many of them came after ``model_kwargs`` were prepared.
        last_position
            The last position that a text can have, where some rows' tokens may be beyond it.
        overrides
            Inputs of the forward that the drafter insists on.

        Returns
        -------
        tuple
            The verification, the forward's own output, and the raw logits ``(B, n+1, V)`` if they are kept.
        """
        n = len(draft)
        forward, inputs = self.prepare(candidate, n, model_kwargs, new_tokens, first=first, pending=pending)
        if last_position is not None and inputs.get("position_ids") is not None:
            inputs["position_ids"] = inputs["position_ids"].clamp(max=last_position)
        inputs.update(overrides)
        self.sent = len(candidate) * (candidate.shape[1] if new_tokens is None else new_tokens + n)
        if self.tap is None:
            outputs = forward(**inputs, return_dict=True)
            clean, dropped = outputs.logits[:, -(n + 1) :], None
        else:
            with self.tap.over(n):
                outputs = forward(**inputs, return_dict=True)
            clean, dropped = self.tap.split(outputs.logits, n)
        raw = clean.to(device=candidate.device, dtype=torch.float32)
        # Processors may overwrite what they are given, and the raw logits belong to the caller.
        verification = self.judge(candidate, draft, raw.clone() if self.keep_raw else raw, dropped)
        return verification, outputs, raw if self.keep_raw else None

    def prepare(
        self, candidate: Tensor, drafted: int, model_kwargs: dict[str, Any], new_tokens: int | None, **context: Any
    ) -> tuple[Callable[..., Any], dict[str, Any]]:
        """Return what runs a forward over the end of ``candidate`` ``(B, L + n)``, and its inputs."""
        sent = None if new_tokens is None else new_tokens + drafted
        return self.model, self.inputs.of_candidate(candidate, model_kwargs, drafted, sent, **context)

    def judge(self, candidate: Tensor, draft: Draft, logits: Tensor, dropped: Tensor | None) -> Verification:
        """Process a forward's logits into what acceptors read.

        Parameters
        ----------
        candidate
            ``(B, L + n)`` committed and drafted tokens.
        draft
            The proposal.
        logits
            ``(B, n + 1, V)`` float32 logits of the target; may be overwritten.
        dropped
            ``(B, K, n, V)`` logits of its dropped heads, or None.
        """
        paths, centroid = self._process_dropped(candidate[:, :-1], dropped, logits.device)
        return Verification(
            tokens=draft.tokens,
            logits=process(self.processors, candidate, logits),
            draft_logits=draft.logits,
            do_sample=self.do_sample,
            randomness=self.randomness,
            hidden=None if self.tap is None else self.tap.hidden.to(logits.device),
            dropped_logits=paths,
            centroid_logits=centroid,
            draft_hidden=draft.hidden,
            lengths=None if draft.lengths is None else torch.tensor(draft.lengths, device=logits.device),
        )

    def _process_dropped(
        self, prefix: Tensor, dropped: Tensor | None, device: torch.device
    ) -> tuple[Tensor | None, Tensor | None]:
        if dropped is None:
            return None, None
        dropped = dropped.to(device)
        centroid = process(self.processors, prefix, dropped.mean(1, dtype=torch.float32))
        return process_paths(self.processors, prefix, dropped), centroid
