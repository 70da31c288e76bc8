"""Drafters: anything that proposes tokens through transformers' ``CandidateGenerator`` contract."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..acceptors import Acceptor
from ..compat import DRAFTERS_WITHOUT_LOGITS, CandidateGenerator
from ..errors import LossyValueError
from ..messages import Draft
from .draft_length import DEFAULT_NUM_TOKENS, check_num_tokens, window_of
from .model import ModelDrafter, check_draft_model, mask_of
from .run_ahead import RunningDrafter

NEEDED = {"draft_probs": "distribution", "draft_hidden": "hidden states"}
"""What rules ask of a drafter, in words."""


def draft(generator: CandidateGenerator, ids: Tensor, room: int, acceptor: Acceptor, **context: Any) -> Draft:
    """Ask a drafter for one proposal that fits into ``room`` tokens.

    Parameters
    ----------
    generator
        Any candidate generator.
    ids
        ``(B, L)`` committed tokens.
    room
        The most tokens that may be drafted now.
    acceptor
        The rule, which may need the draft's distribution.
    context
        What generators that look at the target's outputs are given besides.
    """
    candidate, logits = generator.get_candidates(ids, **context) if room > 0 else (ids, None)
    if isinstance(generator, DRAFTERS_WITHOUT_LOGITS):
        logits = None
    return proposal(generator, candidate[:, ids.shape[1] :][:, :room].to(ids.device), logits, acceptor)


def proposal(
    generator: CandidateGenerator,
    tokens: Tensor,
    logits: Tensor | None,
    acceptor: Acceptor,
    lengths: tuple[int, ...] | None = None,
) -> Draft:
    """Return a drafter's tokens ``(B, n)`` with what the rule needs of the drafter besides."""
    n = tokens.shape[1]
    if n == 0:
        return Draft(tokens)
    hidden = getattr(generator, "hidden", None)
    for need, value in (("draft_probs", logits), ("draft_hidden", hidden)):
        if need in acceptor.needs and value is None:
            raise LossyValueError(
                f"the rule {acceptor.name!r} needs the draft's {NEEDED[need]}, but `candidate_generator` "
                f"{type(generator).__name__} gives none; pass an `assistant_model`, or use a rule that reads the "
                "target alone, e.g. 'topk', 'typical' or 'dropmatch' with criterion='naive'"
            )
    return Draft(
        tokens,
        None if logits is None else logits[:, :n].to(device=tokens.device, dtype=torch.float32),
        hidden[:, :n].to(tokens.device) if "draft_hidden" in acceptor.needs else None,
        lengths,
    )


__all__ = [
    "DEFAULT_NUM_TOKENS",
    "CandidateGenerator",
    "ModelDrafter",
    "RunningDrafter",
    "check_draft_model",
    "check_num_tokens",
    "draft",
    "mask_of",
    "window_of",
]
