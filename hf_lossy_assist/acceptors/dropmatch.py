"""DropMatch: the token has to fit the predictions of the target's head under dropout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..core.distributions import drawable, entropy, js_of
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
        With ``"js"``, how many of the clean head's likeliest tokens are compared one by one, besides x; all others
        together count as one more. No divergence grows by that, each gets cheaper to compute, and decisions hardly
        ever differ. None compares all tokens, as in the paper.

    Examples
    --------
    >>> from hf_lossy_assist.acceptors import DropMatch
    >>> sorted(DropMatch(criterion="naive").needs)
    ['dropped_heads']
    """

    num_paths: int = setting(5, 1, 1000, integer=True)
    dropout: float | str = setting(AUTO, 0, 0.99, word=AUTO)
    criterion: str = setting("js", choices=("js", "naive"))
    candidates: int | None = setting(1024, 1, integer=True, unset="all tokens")

    name = "dropmatch"
    paper = "Lee et al. 2026 (DropMatch, arXiv:2603.03333), section 3"
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
    lossless_at = {"dropout": 0.0}
    without_q = {"criterion": "naive"}

    @cached_property
    def needs(self) -> frozenset[str]:
        """Dropped heads, and q where ``criterion`` compares divergences."""
        return frozenset({"dropped_heads"} | ({"draft_probs"} if self.criterion == "js" else set()))

    @property
    def dropped_heads(self) -> DroppedHeads:
        """The K dropped heads that the draft is compared with."""
        return DroppedHeads(self.num_paths, self.dropout)

    def keep(self, v: Verification) -> Tensor:
        if self.criterion == "naive":
            return self._agreeing(v, v.do_sample).any(1) & v.allowed
        of_draft, of_heads, agreed = self._compare(v, v.do_sample)
        return ((of_draft <= of_heads) | (agreed & ~of_heads.isnan())) & v.allowed  # NaN: no law to draw from

    def _compare(self, v: Verification, do_sample: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return ``JS(q ‖ P̄)``, ``max_k JS(P_k ‖ P̄)``, and if x is the majority of the ``y_k``: equations 5 to 7."""
        parts = []
        for outcomes, heads, centre in self._laws(v):  # (B, K + 1, n, C), q first, and (B, n, C)
            y = v.randomness.categorical(heads[:, 1:]) if do_sample else outcomes.likeliest(heads[:, 1:])
            js = js_of(entropy(heads), entropy(centre)[:, None], heads + centre[:, None])
            parts.append((js[:, 0], js[:, 1:].amax(1), majority(y, centre) == outcomes.x))
        of_draft, of_heads, agreed = [torch.cat(part, dim=-1) for part in zip(*parts, strict=True)]
        return of_draft, of_heads, agreed

    def _agreeing(self, v: Verification, do_sample: bool) -> Tensor:
        """Return ``(B, K, n)`` which heads' ``y_k`` are x; a law that can't be drawn from draws nothing."""
        x = v.tokens[:, None]
        if not do_sample:
            return v.dropped_logits.argmax(-1) == x
        parts = []
        for at in _positions(v.dropped_logits.shape, v.logits.device):
            laws = v.dropped_logits[:, :, at].float().softmax(-1)
            parts.append((v.randomness.categorical(laws) == x[:, :, at]) & drawable(laws))
        return torch.cat(parts, dim=-1)

    def _laws(self, v: Verification) -> Iterator[tuple[AllTokens | Candidates, Tensor, Tensor]]:
        """Yield outcomes at some positions, and the laws of q and the K heads, and of the heads' mean, over them."""
        batch, paths, n, vocabulary = v.dropped_logits.shape
        every = self.candidates is None or self.candidates >= vocabulary
        for at in _positions((batch, paths, n, vocabulary if every else self.candidates + 2), v.logits.device):
            x = v.tokens[:, at]
            outcomes = AllTokens(x) if every else Candidates(x, likeliest(v.logits[:, :n][:, at], self.candidates))
            heads = outcomes.of(v.draft_logits[:, None, at]), outcomes.of(v.dropped_logits[:, :, at])
            yield outcomes, torch.cat(heads, dim=1), outcomes.of(v.centroid_logits[:, at])

    def quantities(self, v: Verification) -> Mapping[str, Tensor]:
        agreeing = self._agreeing(v, do_sample=False).sum(1)
        if self.criterion == "naive":
            return {"agreeing heads": agreeing}
        of_draft, of_heads, _ = self._compare(v, do_sample=False)
        return {"agreeing heads": agreeing, "JS of the draft": of_draft, "largest JS of a head": of_heads}

    def correction(self, v: Verification, at: Tensor) -> Tensor:
        return v.target_distribution(at)


@dataclass(frozen=True, eq=False)
class AllTokens:
    """Every token is an outcome; ``x`` ``(B, n)`` are the drafted ones."""

    x: Tensor

    def of(self, logits: Tensor) -> Tensor:
        """Return the distribution over the outcomes of logits ``(B, …, n, V)``, in float32."""
        return logits.softmax(-1, dtype=torch.float32)

    def likeliest(self, laws: Tensor) -> Tensor:
        return laws.argmax(-1)


class Candidates:
    """The tokens ``ids`` ``(B, n, C)``, x if it is none of them, and all others together are the C + 2 outcomes."""

    def __init__(self, x: Tensor, ids: Tensor) -> None:
        among = ids == x[..., None]
        self.among = among.any(-1)
        self.ids = torch.cat([ids, x[..., None]], dim=-1)
        self.x = torch.where(self.among, among.int().argmax(-1), ids.shape[-1])

    def of(self, logits: Tensor) -> Tensor:
        """Return the distribution over the outcomes of logits ``(B, …, n, V)``, in float32."""
        one = logits.dim() == self.ids.dim()
        ids, twice = (self.ids, self.among) if one else (self.ids[:, None], self.among[:, None])
        picked = logits.gather(-1, ids.expand(*logits.shape[:-1], -1)).float()
        picked = picked.sub_(_log_mass(logits)).exp_()
        picked[..., -1].masked_fill_(twice, 0)
        return torch.cat([picked, (1 - picked.sum(-1, keepdim=True)).clamp_(min=0)], dim=-1)

    def likeliest(self, laws: Tensor) -> Tensor:
        return laws[..., :-1].argmax(-1)  # the rest is no token


def likeliest(logits: Tensor, count: int) -> Tensor:
    """Return ``(…, C)`` the ids of the largest logits, in ascending order: ties go to the same token as among all."""
    return logits.topk(count).indices.sort(-1).values


def _log_mass(logits: Tensor) -> Tensor:
    """Return ``(…, 1)`` the log-sum-exp of logits ``(…, V)``, in float32 of as many rows as a cache holds."""
    rows = logits.flatten(0, -2)
    step = max(1, _room(logits.device) // (4 * rows.shape[-1]))
    return torch.cat([some.float().logsumexp(-1) for some in rows.split(step)]).view(*logits.shape[:-1], 1)


def _room(device: torch.device) -> int:
    return _CHUNK_BYTES.get(device.type, _CHUNK_BYTES_ELSEWHERE)


def _positions(shape: Sequence[int], device: torch.device) -> list[slice]:
    """Cut distributions ``(B, K, n, V)`` into positions of bounded size as float32."""
    batch, paths, n, width = shape
    step = max(1, _room(device) // (4 * batch * width) // paths)
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


def majority(y: Tensor, centroid: Tensor) -> Tensor:
    """Return ``(B, n)`` the most frequent of the K tokens ``y`` ``(B, K, n)``; ties go to the likelier one."""
    votes = (y[:, :, None] == y[:, None]).sum(2)
    likelihood = centroid.gather(-1, y.transpose(1, 2)).transpose(1, 2)
    winner = (votes + likelihood.clamp(max=0.999)).argmax(1, keepdim=True)
    return y.gather(1, winner).squeeze(1)
