"""DropMatch: the token has to fit the predictions of the target's head under dropout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core.distributions import entropy, js_divergence, js_of
from ..core.messages import Verification
from .base import AUTO, Acceptor, DroppedHeads
from .registry import TARGET, Formula, register, setting

_CHUNK_BYTES = {"cpu": 2**20}
_CHUNK_BYTES_ELSEWHERE = 2**25


@register
@dataclass(frozen=True)
class DropMatch(Acceptor):
    """Keep x iff it fits K passes of the LM head over dropped inputs. Correction: p of the undropped head.

    "Training-free Dropout Sampling for Semantic Token Acceptance in Speculative Decoding" (section 3). ``P_k`` are the
    distributions of the K dropped heads and ``P̄`` that of their mean logits; ``y_k`` is drawn from ``P_k``, or its
    argmax in greedy decoding.

    - ``criterion="js"`` (equations 5 to 7): ``JS(q ‖ P̄) <= max_k JS(P_k ‖ P̄)``, or x is the majority of the
      ``y_k`` (ties broken by ``P̄``);
    - ``criterion="naive"`` (equation 4): x is one of the ``y_k``. Needs no draft distribution.

    Parameters
    ----------
    num_paths
        K, the number of dropped heads; at most 1,000.
    dropout
        ρ, the probability that an entry of the head's input is dropped; 0 is lossless greedy decoding. "auto" finds
        the largest ρ at which a dropped head agrees with the clean one at 95 % of the prompt's surer positions.
    criterion
        ``"js"`` or ``"naive"``.
    candidates
        With ``"js"``, how many of the clean head's likeliest tokens are outcomes of their own; x is one, too, and all
        other tokens together are one more. No divergence grows by that, and each gets cheaper to compute. None is the
        paper's rule, over all tokens.

    Examples
    --------
    >>> from hf_lossy_assist.acceptors import DropMatch
    >>> sorted(DropMatch(criterion="naive").needs)
    ['dropped_heads']
    """

    num_paths: int = setting(5, 1, 1000, integer=True)
    dropout: float | str = setting(AUTO, 0, 0.99, word=AUTO)
    criterion: str = setting("js", choices=("js", "naive"))
    candidates: int | None = setting(None, 1, integer=True, unset="all tokens")

    name = "dropmatch"
    paper = "DropMatch: Training-free Dropout Sampling for Semantic Token Acceptance, section 3"
    formula = Formula(
        "Run the LM head K times with dropout on its input; keep x if it fits the spread of the answers. "
        "P₁, …, P_K are their distributions, P̄ is the distribution of their mean logits, and yₖ is drawn "
        "from Pₖ (greedy: its argmax).",
        r"\mathrm{JS}(q \,\|\, \bar P) \le \max_k \mathrm{JS}(P_k \,\|\, \bar P)"
        r"\ \text{ or } x \text{ is the majority of } y_1, \dots, y_K;"
        r"\qquad \text{naive: } x \in \{y_1, \dots, y_K\}",
        TARGET,
        (
            {"criterion": "naive", "dropout": 0.1},
            {"criterion": "naive", "dropout": 0.3},
            {"criterion": "js", "dropout": 0.3},
        ),
        do_sample=False,
    )
    lossless_at: ClassVar = {"dropout": 0.0}
    without_q: ClassVar = {"criterion": "naive"}

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"dropped_heads"} | ({"draft_probs"} if self.criterion == "js" else set()))

    @property
    def dropped_heads(self) -> DroppedHeads:
        return DroppedHeads(self.num_paths, self.dropout)

    def keep(self, v: Verification) -> Tensor:
        if self.criterion == "naive" and not v.do_sample:
            return (v.dropped_logits.argmax(-1) == v.tokens[:, None]).any(1) & v.allowed
        return torch.cat([self._keep(v, at) for at in _chunks(v.dropped_logits)], dim=-1) & v.allowed

    def _keep(self, v: Verification, at: slice) -> Tensor:
        """Decide some of the positions: the K distributions of all would overflow the CPU cache."""
        logits = v.dropped_logits[:, :, at].float()
        if self.criterion == "naive":  # greedy heads have been asked already
            return (v.choose(logits.softmax(-1)) == v.tokens[:, None, at]).any(1)
        outcomes = self._outcomes(v, at)
        paths, centroid = outcomes.of(logits), outcomes.of(v.centroid_logits[:, at])
        y = v.choose(paths) if v.do_sample else outcomes.likeliest(logits)
        agreed = outcomes.x == majority(y, centroid)
        of_draft, of_heads = _divergences(outcomes.merged(v.q[:, at]), centroid, paths)
        return (of_draft <= of_heads) | agreed

    def _outcomes(self, v: Verification, at: slice) -> AllTokens | Candidates:
        x, logits = v.tokens[:, at], v.logits[:, at]
        if self.candidates is None or self.candidates >= logits.shape[-1]:
            return AllTokens(x)
        return Candidates(x, logits[:, : x.shape[1]].topk(self.candidates).indices)

    def quantities(self, v: Verification) -> Mapping[str, Tensor]:
        agreeing = (v.dropped_logits.argmax(-1) == v.tokens[:, None]).sum(1)
        if self.criterion == "naive":
            return {"agreeing heads": agreeing}
        both = []
        for at in _chunks(v.dropped_logits):
            outcomes = self._outcomes(v, at)
            paths, centroid = outcomes.of(v.dropped_logits[:, :, at].float()), outcomes.of(v.centroid_logits[:, at])
            both.append(torch.stack(_divergences(outcomes.merged(v.q[:, at]), centroid, paths)))
        of_draft, of_heads = torch.cat(both, dim=-1)
        return {"agreeing heads": agreeing, "JS of the draft": of_draft, "largest JS of a head": of_heads}

    def correction(self, v: Verification, at: Tensor) -> Tensor:
        return v.target_distribution(at)


@dataclass(frozen=True, eq=False)
class AllTokens:
    """Every token is an outcome; ``x`` ``(B, n)`` are the drafted ones."""

    x: Tensor

    def of(self, logits: Tensor) -> Tensor:
        """Return the distribution over the outcomes of logits ``(B, …, n, V)``."""
        return logits.softmax(-1)

    def merged(self, distribution: Tensor) -> Tensor:
        return distribution

    def likeliest(self, logits: Tensor) -> Tensor:
        return logits.argmax(-1)


class Candidates:
    """The tokens ``ids`` ``(B, n, C)``, x if it is none of them, and all others together are the C + 2 outcomes."""

    def __init__(self, x: Tensor, ids: Tensor) -> None:
        among = ids == x[..., None]
        self.among = among.any(-1)
        self.ids = torch.cat([ids, x[..., None]], dim=-1)
        self.x = torch.where(self.among, among.int().argmax(-1), ids.shape[-1])

    def of(self, logits: Tensor) -> Tensor:
        return self._with_rest((self._pick(logits) - logits.logsumexp(-1, keepdim=True)).exp_())

    def merged(self, distribution: Tensor) -> Tensor:
        return self._with_rest(self._pick(distribution))

    def likeliest(self, logits: Tensor) -> Tensor:
        return self._pick(logits).argmax(-1)

    def _pick(self, values: Tensor) -> Tensor:
        ids = self.ids if values.dim() == self.ids.dim() else self.ids[:, None]
        return values.gather(-1, ids.expand(*values.shape[:-1], -1))

    def _with_rest(self, picked: Tensor) -> Tensor:
        twice = self.among if picked.dim() == self.ids.dim() else self.among[:, None]
        picked[..., -1].masked_fill_(twice, 0)
        return torch.cat([picked, (1 - picked.sum(-1, keepdim=True)).clamp_(min=0)], dim=-1)


def _divergences(q: Tensor, centroid: Tensor, paths: Tensor) -> tuple[Tensor, Tensor]:
    """Return the divergence of ``P̄`` from the draft, and from the farthest head; ``paths`` is overwritten."""
    spread = entropy(centroid)
    of_draft = js_divergence(q, centroid, spread)
    return of_draft, js_of(entropy(paths), spread[:, None], paths.add_(centroid[:, None])).amax(1)


def _chunks(logits: Tensor) -> list[slice]:
    """Cut the positions of ``(B, K, n, V)`` into slices of bounded size as float32."""
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
