"""One row per rule: what it should do, computed without any code of the package.

The oracles are NumPy: closed forms where there is one, else a simulation of the published rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from hf_lossy_assist import LossyVerification
from hf_lossy_assist.acceptors import REGISTRY, Acceptor, settings_of
from hf_lossy_assist.generation.config import LossyConfig
from hf_lossy_assist.heads import JudgeConfig, JudgeHead, ModelIdentity, ThresholdRow
from tests.nightly import nightly

parse = LossyConfig.from_fields

Array = np.ndarray
Acceptance = Callable[["Law", dict[str, Any]], Array]


@dataclass(frozen=True)
class Law:
    """The situation at one position: target p, draft q, and the target's head ``softmax(weight @ h)``."""

    p: Array
    q: Array
    weight: Array
    h: Array
    do_sample: bool


@dataclass(frozen=True)
class Row:
    """A rule at a lossy setting.

    Attributes
    ----------
    mode
        ``lossy_mode``.
    config
        ``lossy_config``.
    acceptance
        From a law to the probability that each token is kept, if drafted.
    correction
        From a law to the law of the correction after a rejected x; one row per x.
    head
        From target and draft to a head, for a rule that uses one.
    """

    mode: str
    config: dict[str, Any]
    acceptance: Acceptance
    correction: Callable[[Law], Array] = field(default=lambda law: residual(law))
    head: Callable[[Any, Any], Any] = field(default=lambda target, draft: None)

    def keywords(self, target: Any, draft: Any, **config: Any) -> dict[str, Any]:
        """Return what ``generate()`` needs to decode by the rule."""
        return {
            "lossy_mode": self.mode,
            "lossy_config": {**config, **self.config},
            "lossy_head": self.head(target, draft),
        }

    def rule(self, target: Any) -> Acceptor:
        return parse(self.mode, self.config, self.head(target, None)).rule

    def hook(self, target: Any, draft: Any = None, **options: Any) -> LossyVerification:
        head = self.head(target, draft)
        return LossyVerification(self.mode, target, assistant_model=draft, lossy_head=head, **options, **self.config)


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def one_hot(i: int, size: int) -> Array:
    return np.eye(size)[i]


def residual(law: Law) -> Array:
    if not law.do_sample:
        return one_hot(law.p.argmax(), len(law.p))
    rest = np.maximum(law.p - law.q, 0)
    return rest / rest.sum() if rest.sum() > 0 else law.p


def from_target(law: Law) -> Array:
    return law.p if law.do_sample else one_hot(law.p.argmax(), len(law.p))


def ratio(law: Law) -> Array:
    """p / q; a token that is never drafted may have any."""
    return np.divide(law.p, law.q, out=np.ones_like(law.p), where=law.q > 0)


def lossless(law: Law, config: dict[str, Any]) -> Array:
    if not law.do_sample:
        return one_hot(law.p.argmax(), len(law.p))
    return np.minimum(1, ratio(law))


def greedy_rule(published: Acceptance) -> Acceptance:
    """A rule made for greedy decoding, which by default also keeps what the lossless rule keeps when sampling."""

    def acceptance(law: Law, config: dict[str, Any]) -> Array:
        own = published(law, config)
        return np.maximum(own, lossless(law, config)) if law.do_sample and not config.get("published") else own

    return acceptance


def ears(law: Law, config: dict[str, Any]) -> Array:
    if not law.do_sample:
        return lossless(law, config)
    return np.minimum(1, ratio(law) + config["beta"] * (1 - law.p.max()))


def topk(law: Law, config: dict[str, Any]) -> Array:
    kth = np.sort(law.p)[-config["k"]]
    return (law.p >= kth) & (np.log(law.p) >= np.log(law.p.max()) - config["tolerance"])


def typical(law: Law, config: dict[str, Any]) -> Array:
    entropy = -(law.p * np.log(law.p)).sum()
    return law.p > min(config["epsilon"], config["delta"] * np.exp(-entropy))


def relaxed(law: Law, config: dict[str, Any]) -> Array:
    nth = np.sort(law.p)[-config["top_n"]]
    return (law.p >= nth) & (law.p >= law.p.max() - config["delta"])


def ensemble(law: Law, config: dict[str, Any]) -> Array:
    w = config["weight"]
    if not law.do_sample:
        return one_hot((w * law.p + (1 - w) * law.q).argmax(), len(law.p))
    return np.minimum(1, 1 - w + w * ratio(law))


def ensemble_correction(weight: float) -> Callable[[Law], Array]:
    def correction(law: Law) -> Array:
        if law.do_sample:
            return residual(law)
        return one_hot((weight * law.p + (1 - weight) * law.q).argmax(), len(law.p))

    return correction


def thresholds(law: Law, config: dict[str, Any]) -> Array:
    enough = law.p >= config["threshold_single"]
    if not law.do_sample:
        return np.maximum(enough, lossless(law, config))
    return np.where(enough, 1, np.minimum(1, law.p / config["threshold_acc"]))


def without_x(law: Law) -> Array:
    if not law.do_sample:
        return from_target(law)
    others = law.p * (1 - np.eye(len(law.p)))
    return others / others.sum(1, keepdims=True)


def near_top(law: Law, config: dict[str, Any]) -> Array:
    return np.where(law.p >= (1 - config["alpha"]) * law.p.max(), 1, lossless(law, config))


def min_p(law: Law, config: dict[str, Any]) -> Array:
    likelier = (law.p[:, None] < law.p).sum(-1)
    return (law.p >= config["tau"] * law.p.max()) & (likelier < config.get("top_n", len(law.p)))


def lenience(law: Law, config: dict[str, Any]) -> Array:
    if not law.do_sample:
        return law.p >= config["factor"] * law.p.max()
    return np.minimum(1, ratio(law) / config["factor"])


def lenience_correction(factor: float) -> Callable[[Law], Array]:
    def correction(law: Law) -> Array:
        rest = np.maximum(law.p - factor * law.q, 0)
        return rest / rest.sum() if law.do_sample else from_target(law)

    return correction


def cactus_law(law: Law, delta: float) -> Array:
    """One row per drafted x: the law h that it is verified against."""
    n = len(law.p)
    h_x = np.minimum(1, law.p + np.sqrt(2 * delta * law.p * (1 - law.p)))
    scaled = np.outer((1 - h_x) / (1 - law.p), law.p)
    return np.where(np.eye(n) == 1, h_x[:, None], scaled)


def cactus(law: Law, config: dict[str, Any]) -> Array:
    if not law.do_sample:
        return lossless(law, config)
    h_x = np.diag(cactus_law(law, config["delta"]))
    return np.minimum(1, np.divide(h_x, law.q, out=np.ones_like(h_x), where=law.q > 0))


def cactus_correction(delta: float) -> Callable[[Law], Array]:
    def correction(law: Law) -> Array:
        if not law.do_sample:
            return from_target(law)
        h = cactus_law(law, delta)
        rest = np.maximum(h - law.q, 0)
        total = rest.sum(1, keepdims=True)
        return np.where(total > 0, rest / np.where(total > 0, total, 1), h)

    return correction


def margin_gap(law: Law, config: dict[str, Any]) -> Array:
    first, second = np.sort(law.p)[:-3:-1]
    of_two = (law.p >= second) & (np.log(first) - np.log(second) < config["gap"])
    return np.maximum(of_two, lossless(law, config))


def regret_of_one_position(law: Law, config: dict[str, Any]) -> Array:
    """At the end of a draft, with nothing spent; see test_regret for whole texts."""
    if law.do_sample:
        return lossless(law, config)
    r = np.log(law.p.max()) - np.log(law.p)
    return (r <= min(config["local_regret"], config["total_regret"])).astype(float)


def fsd(law: Law, config: dict[str, Any]) -> Array:
    if law.p.max() > config.get("strict_above", 1):
        return lossless(law, config)
    divergence = {
        "kl": (law.p * np.log(law.p / law.q)).sum(),
        "js": _js(law.p, law.q),
        "tv": np.maximum(law.p - law.q, 0).sum(),
    }[config["divergence"]]
    return np.full(len(law.p), float(divergence <= config["threshold"]))


def fly_of_one_position(law: Law, config: dict[str, Any]) -> Array:
    """With a window of one position; see test_fly for others."""
    top = np.sort(law.p)[-config["k"] :]
    top = top / top.sum()
    unsure = -(top * np.log(top)).sum() / np.log(config["k"]) >= config["theta"]
    return np.ones(len(law.p)) if unsure else lossless(law, config)


def _paths(law: Law, config: dict[str, Any], rng: np.random.Generator, n: int) -> Array:
    """Logits of the dropped heads: (n, K, V)."""
    keep = rng.random((n, config["num_paths"], len(law.h))) >= config["dropout"]
    return (keep * law.h / (1 - config["dropout"])) @ law.weight.T


def _choices(z: Array, do_sample: bool, rng: np.random.Generator) -> Array:
    if not do_sample:
        return z.argmax(-1)
    return (z + rng.gumbel(size=z.shape)).argmax(-1)


def dropmatch_naive(law: Law, config: dict[str, Any]) -> Array:
    rng = np.random.default_rng(0)
    y = _choices(_paths(law, config, rng, 40_000), law.do_sample, rng)
    return np.array([(y == x).any(1).mean() for x in range(len(law.p))])


def _js(a: Array, b: Array) -> Array:
    m = (a + b) / 2
    return 0.5 * (a * np.log(a / m)).sum(-1) + 0.5 * (b * np.log(b / m)).sum(-1)


def dropmatch_js(law: Law, config: dict[str, Any]) -> Array:
    rng = np.random.default_rng(0)
    z = _paths(law, config, rng, 40_000)
    y = _choices(z, law.do_sample, rng)
    centroid = softmax(z.mean(1))
    inside = _js(law.q[None], centroid) <= _js(softmax(z), centroid[:, None]).max(1)
    votes = np.stack([(y == x).sum(1) for x in range(len(law.p))], -1)
    majority = (votes + 0.5 * centroid).argmax(-1)  # half a vote at most: only ties are broken
    return np.array([(inside | (majority == x)).mean() for x in range(len(law.p))])


def judge_weight(width: int) -> Array:
    return np.random.default_rng(4).standard_normal(width) / width**0.5


def judge_head(target: Any, draft: Any) -> JudgeHead:
    identities = {"target": ModelIdentity.of(target), "draft": ModelIdentity.of(target if draft is None else draft)}
    config = JudgeConfig(**identities, task="none", threshold=0.5, thresholds=(ThresholdRow(0.3, 1.0, 0.5),))
    return JudgeHead(config, torch.tensor(judge_weight(config.width)), 0.2)


def judge(law: Law, config: dict[str, Any]) -> Array:
    """The state is the same at every position of the constant model, so its head's answer is too."""
    important = 1 / (1 + np.exp(-(judge_weight(len(law.h)) @ law.h + 0.2)))
    return np.ones(len(law.p)) if important < config["threshold"] else lossless(law, config)


def output_law(row: Row, law: Law) -> Array:
    """Return the law of the token that leaves a position: ``q·a + (1 - Σ q·a)·correction``."""
    kept, size = row.acceptance(law, row.config).astype(float), len(law.p)
    drafted = law.q if law.do_sample else one_hot(law.q.argmax(), size)
    return drafted * kept + (drafted * (1 - kept)) @ np.broadcast_to(row.correction(law), (size, size))


def row_id(row: Row) -> str:
    said = (v for v in row.config.values() if isinstance(v, str))
    marks = (name for name in ("strict_above", "published") if name in row.config)
    return "-".join([row.mode, *said, *marks])


PUBLISHED_CORRECTIONS = {
    "typical": from_target,
    "relaxed": lambda law: one_hot(law.p.argmax(), len(law.p)),
    "thresholds": without_x,
    **dict.fromkeys(("fsd-js", "fsd-kl", "fsd-tv"), from_target),
}
"""Of draws, where they are not those of the lossless rule."""

ROWS = [
    Row("lossless", {}, lossless),
    Row("ears", {"beta": 0.2}, ears),
    Row("topk", {"k": 3, "tolerance": 0.9}, greedy_rule(topk)),
    Row("typical", {"epsilon": 0.15, "delta": 0.5}, greedy_rule(typical)),
    Row("relaxed", {"top_n": 3, "delta": 0.2}, greedy_rule(relaxed)),
    Row("ensemble", {"weight": 0.6}, ensemble, ensemble_correction(0.6)),
    Row("judge", {"threshold": 0.6}, judge, head=judge_head),
    Row("thresholds", {"threshold_single": 0.25, "threshold_acc": 0.7}, greedy_rule(thresholds)),
    Row("near_top", {"alpha": 0.4}, near_top),
    Row("min_p", {"tau": 0.3}, greedy_rule(min_p)),
    Row("min_p", {"tau": 0.1, "top_n": 2}, greedy_rule(min_p)),
    Row("lenience", {"factor": 0.6}, lenience, lenience_correction(0.6)),
    Row("fsd", {"divergence": "js", "threshold": 0.05}, greedy_rule(fsd)),
    Row("fsd", {"divergence": "kl", "threshold": 0.2}, greedy_rule(fsd)),
    Row("fsd", {"divergence": "tv", "threshold": 0.25}, greedy_rule(fsd)),
    Row("fsd", {"divergence": "js", "threshold": 0.05, "strict_above": 0.3}, greedy_rule(fsd)),
    Row("cactus", {"delta": 0.05}, cactus, cactus_correction(0.05)),
    Row("margin", {"gap": 0.3}, margin_gap),
    Row("regret", {"total_regret": 1e6, "local_regret": 0.4, "mismatches": 4}, regret_of_one_position),
    Row("fly", {"window": 1, "theta": 0.9, "k": 5}, fly_of_one_position),
    Row("dropmatch", {"criterion": "naive", "num_paths": 3, "dropout": 0.2}, dropmatch_naive, from_target),
    Row("dropmatch", {"criterion": "js", "num_paths": 3, "dropout": 0.2}, dropmatch_js, from_target),
]
_KINDS = ("lossless", "ears", "topk", "fsd", "regret", "judge", "dropmatch")
SOME_ROWS = nightly(ROWS, but=[row for row in ROWS if row.mode in _KINDS])
"""A rule of each kind, of what it reads and when it corrects, for what rules do not do themselves; at night all."""

PUBLISHED = [
    replace(row, config=row.config | {"published": True}, correction=PUBLISHED_CORRECTIONS.get(row_id(row), residual))
    for row in ROWS
    if "published" in {each.name for each in settings_of(REGISTRY[row.mode])}
]
"""Sampling as published, by the same settings."""
