"""The target: one forward over a draft, and what stays of it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from ..compat import idle_forward
from ..forwards import Forwards
from ..messages import Commit, Draft, Verification
from .verifier import Verifier


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

    def verify(self, candidate: Tensor, draft: Draft) -> Verification:
        """Run one forward over everything of ``candidate`` ``(B, W + n)`` that the model has not seen.

        Logits are computed from the first token on that the model is to decide. After trusted tokens that is one token
        per row, and the verification is about these alone.
        """
        judged = draft.without_trusted()
        with self.verifier.watching(len(judged)):
            outputs = self.forwards.run(candidate, len(judged) + 1, draft.target_inputs)
        verification = self.verifier.judge(candidate, judged, outputs, self.forwards.sent)
        if judged.trusted is None or len(judged) == 1:
            return verification
        return verification.at(judged.first_undecided)

    def keep(self, commit: Commit) -> None:
        """Keep what a round has committed, where the rows now stand, and forget the rest of the draft."""
        if commit.verification is None:
            return
        if commit.path is not None:
            self.forwards.keep_path(commit.start, commit.path)
        if commit.shift is not None:
            self.forwards.move(commit.shift, commit.ids)
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
