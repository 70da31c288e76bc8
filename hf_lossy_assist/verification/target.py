"""The target: one forward over a draft, what rules read of it, and what stays in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedModel

from ..acceptors import Acceptor
from ..commit import Commit
from ..compat import idle_forward
from ..forwards import Forwards
from ..messages import Draft, Verification
from ..sampling import Randomness, process, process_paths
from .lm_head_hook import LMHeadHook, lm_head_hook


class Target:
    """The model that is drafted for: it says what it thinks of drafts, and keeps in its cache what is committed.

    Parameters
    ----------
    forwards
        Its forwards: they alone know cache, mask, positions, and what of the text the model has not seen.
    verifier
        Turns a forward's output into what rules read.
    """

    def __init__(self, forwards: Forwards, verifier: Verifier) -> None:
        self.forwards = forwards
        self.verifier = verifier

    @property
    def model(self) -> PreTrainedModel:
        """The model."""
        return self.forwards.model

    @property
    def carried(self) -> dict[str, Any]:
        """What is carried from forward to forward: the cache, and of an encoder-decoder model the encoder's outputs."""
        return self.forwards.carried

    def rooms(self, length: int, rooms: Sequence[int]) -> list[int]:
        """Return how many tokens may follow texts of ``length`` in this round, of as many as there is room for."""
        most = self.forwards.forgettable(length) + 1  # the last is not in the cache
        return [min(room, most) for room in rooms]

    def verify(self, candidate: Tensor, draft: Draft, charged: Sequence[float] = ()) -> Verification:
        """Run one forward over everything of ``candidate`` ``(B, W + n)`` that the model has not seen.

        Logits are computed from the first token on that the model is to decide. After trusted tokens that is one token
        per row, and the verification is about these alone. ``charged`` is what a rule has charged the texts so far.
        """
        judged = draft.without_trusted()
        room = self.room(candidate, len(judged))
        keep = len(judged) + room
        self.forwards.catch_up(candidate, keep)
        with self.verifier.watching(len(judged)):
            outputs = self.forwards.run(candidate, keep, draft.target_inputs)
        verification = self.verifier.judge(candidate, judged, outputs, self.forwards.sent, charged)
        if judged.trusted is None or len(judged) == 1:
            return verification
        return verification.at(judged.first_undecided)

    def room(self, candidate: Tensor, drafted: int) -> int:
        """Return at how many positions before ``drafted`` tokens logits are computed: one, unless a rule wants more."""
        known = candidate.shape[1] - drafted - self.forwards.seen
        return self.verifier.room(self.carried.get("attention_mask"), len(candidate), known)

    def keep(self, commit: Commit) -> None:
        """Keep what a round has committed, where the rows now stand, and forget the rest of the draft."""
        if commit.verification is None:
            return
        if commit.path is not None:
            self.forwards.keep_path(commit.start, commit.path)
        if commit.shift is not None:
            self.forwards.move(commit.shift, commit.ids)
            self.verifier.move(commit.shift.index)
            return
        # The newest token is never in the cache: it is the first input of the next forward.
        self.forwards.rewind(commit.width - 1)
        self.forwards.extend(commit.width)

    def idle(self, ids: Tensor) -> None:
        """Run a forward for nothing."""
        idle_forward(self.model, ids, self.carried)

    def in_use(self) -> AbstractContextManager[None]:
        """Inside the block, the cache may be rewound."""
        return self.forwards.in_use()


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

    def room(self, mask: Tensor | None, rows: int, known: int) -> int:
        """Return at how many of the ``known`` positions before a draft the LM head is to be called: mostly the last."""
        return 1 if self.hook is None else self.hook.room(mask, rows, known)

    def move(self, rows: Tensor) -> None:
        """Follow ``rows`` of the batch that go on."""
        if self.hook is not None:
            self.hook.move(rows)

    def watching(self, drafted: int) -> AbstractContextManager[Any]:
        """Inside the block, read the LM head's input in a forward over ``drafted`` tokens, if the rule wants to."""
        return nullcontext() if self.hook is None else self.hook.over(drafted)

    def split(self, logits: Tensor, drafted: int) -> tuple[Tensor, Tensor | None]:
        """Split a forward's logits into clean ``(B, n+1, V)`` and dropped ``(B, K, n, V)`` ones, or None."""
        if self.hook is None:
            return logits[:, -(drafted + 1) :], None
        return self.hook.split(logits, drafted)

    def judge(
        self, candidate: Tensor, draft: Draft, outputs: Any, sent: int = 0, charged: Sequence[float] = ()
    ) -> Verification:
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
        charged
            What a rule has charged the texts so far.
        """
        clean, dropped = self.split(outputs.logits, len(draft))
        raw = clean.to(device=candidate.device, dtype=torch.float32)
        # Processors may overwrite what they are given, and the raw logits belong to the caller.
        logits = raw.clone() if self.keep_raw else raw
        kept = raw if self.keep_raw else None
        return self.judge_logits(candidate, draft, logits, dropped, outputs, kept, sent, charged)

    def judge_logits(
        self,
        candidate: Tensor,
        draft: Draft,
        logits: Tensor,
        dropped: Tensor | None,
        outputs: Any = None,
        raw: Tensor | None = None,
        sent: int = 0,
        charged: Sequence[float] = (),
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
            charged=charged,
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
