"""DropMatch: does the token fit the target's own dropout-perturbed heads?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..messages import Verification
from .base import Acceptor, DroppedHeads, check_choice, check_number


def js_divergence(a: Tensor, b: Tensor) -> Tensor:
    """Return ``JS(a ‖ b) = H((a+b)/2) - (H(a) + H(b))/2`` in nats over the last dimension, in [0, ln 2]."""
    entropy = torch.special.entr
    mixed = entropy((a + b) / 2).sum(-1)
    return (mixed - (entropy(a).sum(-1) + entropy(b).sum(-1)) / 2).clamp(min=0)


@dataclass(frozen=True)
class DropMatch(Acceptor):
    """Keep x iff it fits K passes of the LM head over dropped inputs. Correction: p of the undropped head.

    "Training-free Dropout Sampling for Semantic Token Acceptance in Speculative Decoding" (section 3). With
    ``P_k`` the K dropped heads' laws, ``P̄`` the law of their mean logits, and ``y_k`` the argmax of (greedy)
    or a draw from ``P_k``:

    - ``criterion="js"`` (equations 5 to 7): ``JS(q ‖ P̄) <= max_k JS(P_k ‖ P̄)``, or x is the majority of the
      ``y_k`` (ties broken by ``P̄``);
    - ``criterion="naive"`` (equation 4): x is one of the ``y_k``. Needs no draft distribution.

    Parameters
    ----------
    num_paths
        K, the number of dropped heads.
    dropout
        ρ, the probability that an entry of the head's input is dropped; 0 is lossless greedy decoding.
    criterion
        ``"js"`` or ``"naive"``.

    Examples
    --------
    >>> from hf_lossy_assist.acceptors import DropMatch
    >>> sorted(DropMatch(criterion="naive").needs)
    ['dropped_heads']
    """

    num_paths: int = 5
    dropout: float = 0.3
    criterion: str = "js"

    name: ClassVar[str] = "dropmatch"
    paper: ClassVar[str] = "DropMatch"
    lossless_at: ClassVar[Mapping[str, Any]] = {"dropout": 0.0}

    def __post_init__(self) -> None:
        check_number(self.name, "num_paths", self.num_paths, 1, integer=True)
        check_number(self.name, "dropout", self.dropout, 0, 0.99)
        check_choice(self.name, "criterion", self.criterion, ("js", "naive"))

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"dropped_heads"} | ({"draft_probs"} if self.criterion == "js" else set()))

    @property
    def dropped_heads(self) -> DroppedHeads:
        return DroppedHeads(self.num_paths, self.dropout)

    def keep(self, v: Verification) -> Tensor:
        y = v.choose(v.dropped_logits.softmax(-1) if v.do_sample else v.dropped_logits)  # (B, K, n)
        if self.criterion == "naive":
            return (y == v.tokens[:, None]).any(1) & v.allowed
        paths = v.dropped_logits.softmax(-1)
        centroid = v.centroid_logits.softmax(-1)
        inside = js_divergence(v.q, centroid) <= js_divergence(paths, centroid[:, None]).amax(1)
        return (inside | (v.tokens == majority(y, centroid))) & v.allowed

    def correction(self, v: Verification, at: Tensor) -> Tensor:
        return v.target_law(at)


def majority(y: Tensor, centroid: Tensor) -> Tensor:
    """Return ``(B, n)`` the most frequent of the K tokens ``y`` ``(B, K, n)``; ties go to the likelier one."""
    votes = (y[:, :, None] == y[:, None]).sum(2)
    likelihood = centroid.gather(-1, y.transpose(1, 2)).transpose(1, 2)
    winner = (votes + likelihood.clamp(max=0.999)).argmax(1, keepdim=True)
    return y.gather(1, winner).squeeze(1)
