"""Verification: one target forward over a draft."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LogitsProcessorList, PreTrainedModel

from .acceptors import Acceptor, DroppedHeads
from .compat import prepare_candidate_inputs
from .errors import LossyUnsupportedError
from .messages import Draft, Verification
from .processing import process
from .sampling import Randomness


class HeadTap:
    """Looks at what enters an LM head, and sends dropped copies of it through the same call.

    The head's weights are read once for clean and dropped rows, and whatever the model does to logits after
    its head (soft-capping, scaling) happens to every path by itself.

    Parameters
    ----------
    head
        The model's output embeddings.
    dropped
        How many dropped copies of every drafted position to append, if any.
    randomness
        The source of the dropout masks.
    """

    def __init__(self, head: nn.Module, dropped: DroppedHeads | None, randomness: Randomness) -> None:
        self.head = head
        self.dropped = dropped
        self.randomness = randomness
        self.hidden: Tensor | None = None

    @contextmanager
    def over(self, drafted: int) -> Iterator[HeadTap]:
        """Watch the head's calls of this thread inside the block, for a forward over ``drafted`` tokens."""
        thread = threading.get_ident()
        self.hidden = None

        def hook(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
            if threading.get_ident() != thread:
                return None
            self.hidden = args[0][:, -(drafted + 1) :]
            if self.dropped is None:
                return None
            return (torch.cat([self.hidden, self._drop(self.hidden[:, :-1])], dim=1), *args[1:])

        handle = self.head.register_forward_pre_hook(hook)
        try:
            yield self
        finally:
            handle.remove()

    def split(self, logits: Tensor, drafted: int) -> tuple[Tensor, Tensor | None]:
        """Split the forward's logits into clean ``(B, n+1, V)`` and dropped ``(B, K, n, V)`` ones."""
        if self.hidden is None:
            raise LossyUnsupportedError(
                "the model does not call its output embeddings as a module, so rules that read the LM head's input "
                "can't be used with it; use a rule that reads logits only, e.g. 'topk'"
            )
        if self.dropped is None:
            return logits[:, -(drafted + 1) :], None
        clean, dropped = logits.split([drafted + 1, self.dropped.num_paths * drafted], dim=1)
        return clean, dropped.unflatten(1, (self.dropped.num_paths, drafted))

    def _drop(self, hidden: Tensor) -> Tensor:
        batch, drafted, width = hidden.shape
        paths = self.dropped.num_paths
        mask = self.randomness.keep_mask((batch, paths, drafted, width), self.dropped.dropout, hidden)
        return (hidden[:, None] * mask).flatten(1, 2)


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
    """

    model: PreTrainedModel
    processors: LogitsProcessorList
    acceptor: Acceptor
    do_sample: bool
    randomness: Randomness
    keep_raw: bool = False
    tap: HeadTap | None = None

    def __post_init__(self) -> None:
        if self.acceptor.needs & {"hidden", "dropped_heads"}:
            head = self.model.get_output_embeddings()
            if head is None:
                raise LossyUnsupportedError(
                    f"the rule {self.acceptor.name!r} reads the input of the LM head, but {type(self.model).__name__} "
                    "names none; use a rule that reads logits only, e.g. 'topk'"
                )
            self.tap = HeadTap(head, self.acceptor.dropped_heads, self.randomness)

    def verify(
        self,
        ids: Tensor,
        draft: Draft,
        model_kwargs: dict[str, Any],
        *,
        first: bool,
        new_tokens: int | None,
        overrides: Mapping[str, Any] = MappingProxyType({}),
    ) -> tuple[Verification, Any, Tensor | None]:
        """Run one forward over everything the target has not seen.

        Parameters
        ----------
        ids
            ``(B, L)`` committed tokens.
        draft
            The proposal to judge.
        model_kwargs
            What ``generate()`` carries from forward to forward: cache, mask, positions.
        first
            Whether this is the run's first forward.
        new_tokens
            How many committed tokens are not in the cache; None sends all of ``ids``.
        overrides
            Inputs of the forward that the drafter insists on.

        Returns
        -------
        tuple
            The verification, the forward's own output, and the raw logits ``(B, n+1, V)`` if they are kept.
        """
        n = len(draft)
        candidate = torch.cat([ids, draft.tokens], dim=-1)
        inputs = prepare_candidate_inputs(
            self.model, candidate, model_kwargs, n, None if new_tokens is None else new_tokens + n, first
        )
        inputs.update(overrides)
        if self.tap is None:
            outputs = self.model(**inputs, return_dict=True)
            clean, dropped = outputs.logits[:, -(n + 1) :], None
        else:
            with self.tap.over(n):
                outputs = self.model(**inputs, return_dict=True)
            clean, dropped = self.tap.split(outputs.logits, n)
        raw = clean.to(device=ids.device, dtype=torch.float32)
        # Processors may overwrite what they are given, and the raw logits belong to the caller.
        verification = self.judge(candidate, draft, raw.clone() if self.keep_raw else raw, dropped)
        return verification, outputs, raw if self.keep_raw else None

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
            hidden=None if self.tap is None else self.tap.hidden,
            dropped_logits=paths,
            centroid_logits=centroid,
        )

    def _process_dropped(
        self, prefix: Tensor, dropped: Tensor | None, device: torch.device
    ) -> tuple[Tensor | None, Tensor | None]:
        if dropped is None:
            return None, None
        dropped = dropped.to(device=device, dtype=torch.float32)
        centroid = process(self.processors, prefix, dropped.mean(1))
        paths = [process(self.processors, prefix, path) for path in dropped.unbind(1)]
        return torch.stack(paths, dim=1), centroid
