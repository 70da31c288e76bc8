"""DropMatch: does the token fit the target's own dropout-perturbed heads?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..messages import Verification
from .base import Acceptor, DroppedHeads, check_choice, check_number

_CHUNK_BYTES = {"cpu": 2**20}
_CHUNK_BYTES_ELSEWHERE = 2**25


def entropy(law: Tensor) -> Tensor:
    """Return ``-Σ x log x`` in nats over the last dimension."""
    if law.device.type != "cpu":
        return torch.special.entr(law).sum(-1)
    # Twice as fast as `entr` there, which is not vectorised.
    return -law.clamp(min=torch.finfo(law.dtype).tiny).log_().mul_(law).sum(-1)


def js_divergence(a: Tensor, b: Tensor) -> Tensor:
    """Return ``JS(a ‖ b) = H((a+b)/2) - (H(a) + H(b))/2`` in nats over the last dimension, in [0, ln 2]."""
    return _js(entropy(a), entropy(b), a + b)


def _js(entropy_a: Tensor, entropy_b: Tensor, total: Tensor) -> Tensor:
    """Return the divergence of two laws from their entropies and their sum."""
    # H((a+b)/2) = ln 2 - Σ (a+b) log (a+b) / 2, so the sum need not be halved.
    return (math.log(2) + (entropy(total) - entropy_a - entropy_b) / 2).clamp_(min=0)


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
        K, the number of dropped heads; at most 1,000.
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
        check_number(self.name, "num_paths", self.num_paths, 1, 1000, integer=True)
        check_number(self.name, "dropout", self.dropout, 0, 0.99)
        check_choice(self.name, "criterion", self.criterion, ("js", "naive"))

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"dropped_heads"} | ({"draft_probs"} if self.criterion == "js" else set()))

    @property
    def dropped_heads(self) -> DroppedHeads:
        return DroppedHeads(self.num_paths, self.dropout)

    def keep(self, v: Verification) -> Tensor:
        if self.criterion == "naive" and not v.do_sample:
            return (v.dropped_logits.argmax(-1) == v.tokens[:, None]).any(1) & v.allowed
        kept = [self._keep(v, positions) for positions in _chunks(v.dropped_logits)]
        return torch.cat(kept, dim=-1) & v.allowed

    def _keep(self, v: Verification, at: slice) -> Tensor:
        """Decide some of the positions: the K laws of all would not fit into a cache."""
        x, logits = v.tokens[:, at], v.dropped_logits[:, :, at].float()
        paths = logits.softmax(-1)  # (B, K, positions, V)
        y = v.choose(paths if v.do_sample else logits)
        if self.criterion == "naive":
            return (y == x[:, None]).any(1)
        centroid = v.centroid_logits[:, at].softmax(-1)
        spread = entropy(centroid)
        of_draft = _js(entropy(v.q[:, at]), spread, v.q[:, at] + centroid)
        of_paths = _js(entropy(paths), spread[:, None], paths.add_(centroid[:, None]))
        return (of_draft <= of_paths.amax(1)) | (x == majority(y, centroid))

    def correction(self, v: Verification, at: Tensor) -> Tensor:
        return v.target_law(at)


def _chunks(logits: Tensor) -> list[slice]:
    """Cut the positions of ``(B, K, n, V)`` into slices whose laws in float32 are of a size that stays in caches."""
    batch, paths, n, vocabulary = logits.shape
    room = _CHUNK_BYTES.get(logits.device.type, _CHUNK_BYTES_ELSEWHERE)
    step = max(1, room // (4 * batch * paths * vocabulary))
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


def majority(y: Tensor, centroid: Tensor) -> Tensor:
    """Return ``(B, n)`` the most frequent of the K tokens ``y`` ``(B, K, n)``; ties go to the likelier one."""
    votes = (y[:, :, None] == y[:, None]).sum(2)
    likelihood = centroid.gather(-1, y.transpose(1, 2)).transpose(1, 2)
    winner = (votes + likelihood.clamp(max=0.999)).argmax(1, keepdim=True)
    return y.gather(1, winner).squeeze(1)
