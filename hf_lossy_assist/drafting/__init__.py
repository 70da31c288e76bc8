"""Drafters: anything that proposes tokens through transformers' ``CandidateGenerator`` contract."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..acceptors import Acceptor
from ..compat import CandidateGenerator
from ..errors import LossyValueError
from ..messages import Draft
from .model import DEFAULT_NUM_TOKENS, ModelDrafter, check_draft_model, check_num_tokens


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
    tokens = candidate[:, ids.shape[1] :][:, :room].to(ids.device)
    if tokens.shape[1] == 0:
        return Draft(tokens)
    if logits is None:
        if "draft_probs" in acceptor.needs:
            raise LossyValueError(
                f"the rule {acceptor.name!r} needs the draft's distribution, but `candidate_generator` "
                f"{type(generator).__name__} gives none; pass an `assistant_model`, or use a rule that reads the "
                "target alone, e.g. 'topk', 'typical' or 'dropmatch' with criterion='naive'"
            )
        return Draft(tokens)
    return Draft(tokens, logits[:, : tokens.shape[1]].to(device=ids.device, dtype=torch.float32))


__all__ = [
    "DEFAULT_NUM_TOKENS",
    "CandidateGenerator",
    "ModelDrafter",
    "check_draft_model",
    "check_num_tokens",
    "draft",
]
