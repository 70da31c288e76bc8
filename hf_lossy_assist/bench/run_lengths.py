"""How well SPRINTER's theory foretells the runs that come out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..heads import VerifierHead
from ..sampling import Randomness
from ..theory import sprinter_expected_run_length
from ..verification.lm_head_hook import lm_head_hook
from .runs import Response


@dataclass(frozen=True)
class Foretold:
    """A verifier's errors on greedy texts, and the run length that follows from them.

    Attributes
    ----------
    tpr, fpr
        Share of the acceptable drafted tokens, and of the others, that the head lets pass.
    acceptable
        Share of the drafted tokens that are acceptable: q(x) <= λ p(x).
    mean_run
        Theorem 2's expectation of the run length, bounded by ``max_draft - 1``, over r acceptable tokens first, where
        ``P(r) = s^r (1 - s)`` with s the share of acceptable tokens.
    """

    tpr: float
    fpr: float
    acceptable: float
    mean_run: float


@torch.inference_mode()
def foretell(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    head: VerifierHead,
    threshold: float,
    responses: Sequence[Response],
    *,
    max_draft: int = 64,
) -> Foretold:
    """Score the draft's greedy token at every position of some texts, by the head and by both models' laws.

    Parameters
    ----------
    target, draft, head
        The models and the verifier head.
    threshold, max_draft
        Of SPRINTER.
    responses
        Texts that SPRINTER wrote.
    """
    scored = [_score(target, draft, head, response) for response in responses]
    passes = torch.cat([score for score, _ in scored]) > threshold
    acceptable = torch.cat([label for _, label in scored])
    tpr, fpr = (_share(passes[acceptable == kind]) for kind in (True, False))
    share = _share(acceptable)
    longest = max_draft - 1
    lengths = torch.tensor([sprinter_expected_run_length(tpr, fpr, r, longest) for r in range(longest + 1)])
    weights = share ** torch.arange(longest + 1) * (1 - share)
    weights[-1] = share**longest
    return Foretold(tpr, fpr, share, float((weights * lengths).sum()))


def _share(values: Tensor) -> float:
    return values.double().mean().item() if len(values) else 0.0


def _score(target: PreTrainedModel, draft: PreTrainedModel, head: VerifierHead, response: Response) -> tuple:
    ids = torch.cat([response.prompt, response.tokens])[None].to(target.device)
    start = len(response.prompt) - 1
    tap = lm_head_hook(draft, Randomness())
    with tap.over(ids.shape[1] - 1):
        q = draft(input_ids=ids.to(draft.device), use_cache=False).logits[0, start:-1].float().to(ids.device)
    states = tap.hidden[0, start:-1]
    p = target(input_ids=ids, use_cache=False).logits[0, start:-1].float()
    x = q.argmax(-1, keepdim=True)
    acceptable = (q.log_softmax(-1) - p.log_softmax(-1)).gather(-1, x)[:, 0].exp() <= head.config.ratio
    if head.config.position == "token":
        states = torch.cat([_after(draft, ids[:, : start + 1 + i], token) for i, token in enumerate(x)])
    return head.probability(states.float()), acceptable


def _after(draft: PreTrainedModel, prefix: Tensor, token: Tensor) -> Tensor:
    tap = lm_head_hook(draft, Randomness())
    with tap.over(0):
        draft(input_ids=torch.cat([prefix, token[None]], dim=1).to(draft.device), use_cache=False)
    return tap.hidden[0, -1:]
