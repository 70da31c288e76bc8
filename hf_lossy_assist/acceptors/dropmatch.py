"""DropMatch: the token has to fit the predictions of the target's head under dropout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..messages import Verification
from ..sampling import entropy, js_divergence, js_of
from .base import AUTO, Acceptor, DroppedHeads
from .registry import register, setting

_CHUNK_BYTES = {"cpu": 2**20}
_CHUNK_BYTES_ELSEWHERE = 2**25


@register
@dataclass(frozen=True)
class DropMatch(Acceptor):
    """Keep x iff it fits K passes of the LM head over dropped inputs. Correction: p of the undropped head.

    "Training-free Dropout Sampling for Semantic Token Acceptance in Speculative Decoding" (section 3). ``P_k`` are the
    distributions of the K dropped heads, ``P̄`` that of their mean logits, ``y_k`` the argmax of (greedy) or a draw
    from ``P_k``.

    - ``criterion="js"`` (equations 5 to 7): ``JS(q ‖ P̄) <= max_k JS(P_k ‖ P̄)``, or x is the majority of the
      ``y_k`` (ties broken by ``P̄``);
    - ``criterion="naive"`` (equation 4): x is one of the ``y_k``. Needs no draft distribution.

    Parameters
    ----------
    num_paths
        K, the number of dropped heads; at most 1,000.
    dropout
        ρ, the probability that an entry of the head's input is dropped; 0 is lossless greedy decoding. "auto" finds
        the largest at which a dropped head agrees with the clean one at 95 % of the prompt's surer positions.
    criterion
        ``"js"`` or ``"naive"``.

    Examples
    --------
    >>> from hf_lossy_assist.acceptors import DropMatch
    >>> sorted(DropMatch(criterion="naive").needs)
    ['dropped_heads']
    """

    num_paths: int = setting(5, 1, 1000, integer=True)
    dropout: float | str = setting(AUTO, 0, 0.99, word=AUTO)
    criterion: str = setting("js", choices=("js", "naive"))

    name = "dropmatch"
    paper = "DropMatch: Training-free Dropout Sampling for Semantic Token Acceptance, section 3"
    lossless_at: ClassVar = {"dropout": 0.0}

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({"dropped_heads"} | ({"draft_probs"} if self.criterion == "js" else set()))

    @property
    def dropped_heads(self) -> DroppedHeads:
        return DroppedHeads(self.num_paths, self.dropout)

    def keep(self, v: Verification) -> Tensor:
        if self.criterion == "naive" and not v.do_sample:
            return (v.dropped_logits.argmax(-1) == v.tokens[:, None]).any(1) & v.allowed
        return torch.cat([self._keep(v, at) for at in _chunks(v.dropped_logits)], dim=-1) & v.allowed

    def _keep(self, v: Verification, at: slice) -> Tensor:
        """Decide some of the positions: the K distributions of all would not fit into a cache."""
        x, logits = v.tokens[:, at], v.dropped_logits[:, :, at].float()
        paths = logits.softmax(-1)  # (B, K, positions, V)
        y = v.choose(paths if v.do_sample else logits)
        if self.criterion == "naive":
            return (y == x[:, None]).any(1)
        centroid, of_draft, of_heads = self._divergences(v, at, paths)
        return (of_draft <= of_heads) | (x == majority(y, centroid))

    def _divergences(self, v: Verification, at: slice, paths: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return ``P̄`` at some of the positions, and how far the draft and the farthest head are from it."""
        paths = v.dropped_logits[:, :, at].float().softmax(-1) if paths is None else paths
        centroid = v.centroid_logits[:, at].softmax(-1)
        spread = entropy(centroid)
        of_draft = js_divergence(v.q[:, at], centroid, spread)
        of_heads = js_of(entropy(paths), spread[:, None], paths.add_(centroid[:, None])).amax(1)
        return centroid, of_draft, of_heads

    def quantities(self, v: Verification) -> Mapping[str, Tensor]:
        agreeing = (v.dropped_logits.argmax(-1) == v.tokens[:, None]).sum(1)
        if self.criterion == "naive":
            return {"agreeing heads": agreeing}
        both = [torch.stack(self._divergences(v, at)[1:]) for at in _chunks(v.dropped_logits)]
        of_draft, of_heads = torch.cat(both, dim=-1)
        return {"agreeing heads": agreeing, "JS of the draft": of_draft, "largest JS of a head": of_heads}

    def correction(self, v: Verification, at: Tensor) -> Tensor:
        return v.target_distribution(at)


def _chunks(logits: Tensor) -> list[slice]:
    """Cut the positions of ``(B, K, n, V)`` into slices that fit into a cache as float32."""
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
