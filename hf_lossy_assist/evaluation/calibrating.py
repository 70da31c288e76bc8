"""From answers to a certificate, by bounds on the mean of losses in [-1, 1] that hold at every number of problems.

A bettor risks a share of their wealth on each problem against "the mean loss is at least m". If that is true, the
wealth ever exceeds 1/δ times the stake with probability at most δ (Ville). A larger wealth therefore refutes m with
confidence 1 - δ (Waudby-Smith & Ramdas 2023). The stake is divided among bettors with fixed shares, so nothing has to
be tuned to the variance of the losses.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from ..errors import LossyValueError
from ..generation.certificate import Certificate, TestedSetting, head_sums
from ..generation.config import LossyConfig
from ..values import Rule, is_number
from .answers import Answer, by_mode, load_answers

# The share of its wealth that each bettor risks on a problem.
SHARES = np.geomspace(0.001, 1.0, 16)


def bound(losses: Any, confidence: float = 0.95) -> float:
    """Return an upper bound of the mean loss, at most 1, that holds with ``confidence`` for any distribution.

    The bound holds at all numbers of losses at once, so looking and stopping early are allowed. The order of the losses
    matters a little and has to be fixed beforehand.

    Parameters
    ----------
    losses
        ``(n,)`` independent losses in [-1, 1] from one distribution, e.g. the reference's score less the setting's.
    confidence
        In (0, 1).

    Examples
    --------
    >>> round(bound([0.0] * 1000), 4)
    0.0055
    >>> round(bound([0.0, 1.0, -1.0, 0.0] * 500), 3)
    0.05
    """
    values = _in_range(losses)
    _, target = _checked(0.0, confidence)
    if not len(values):
        return 1.0
    low, high = -1.0, 1.0
    for _ in range(40):  # bisection: the wealth grows with the mean
        middle = (low + high) / 2
        low, high = (low, middle) if _refuted(values, middle, target) else (middle, high)
    return high


def select(losses: Any, max_loss: float, confidence: float = 0.95) -> int | None:
    """Return the index of the last setting that is certified to lose at most ``max_loss`` on average, or None.

    Settings are tested in order, each with the whole confidence, up to the first that fails. All certified settings
    hold at once with that confidence, however their losses depend on each other (fixed sequence testing; Learn Then
    Test, Angelopoulos et al. 2021).

    Parameters
    ----------
    losses
        ``(n, m)`` losses in [-1, 1] on the same n problems. Columns go from the most cautious setting to the boldest,
        in an order decided before looking at the losses.
    max_loss
        The limit, in the unit of the losses: 0.01 is a point.
    confidence
        In (0, 1).

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> losses = (rng.random((5000, 3)) < [0.0, 0.005, 0.1]).astype(float)
    >>> select(losses, max_loss=0.01)
    1
    """
    columns = np.asarray(losses, dtype=float)
    if columns.ndim != 2 or not columns.size:
        raise LossyValueError(
            f"`losses` has to have the shape (problems, settings), with one or more of each, but has {columns.shape}; "
            "measure every setting's losses on the same problems first"
        )
    limit, target = _checked(max_loss, confidence)
    last = None
    for i, column in enumerate(columns.T):
        if not _refuted(_in_range(column), limit, target):
            break
        last = i
    return last


def certify(
    families: Mapping[str, Sequence[Any]], max_loss: float, confidence: float = 0.95
) -> dict[str, list[tuple[float, float]]]:
    """Certify settings of several families, all at once with ``confidence``.

    The families share the risk equally. A family whose settings are all certified passes its risk on to the next (the
    fallback procedure, Wiens & Dmitrienko 2005). Within a family, :func:`select` applies.

    Parameters
    ----------
    families
        By name, the losses ``(n,)`` of each setting, from cautious to bold. Settings may have seen different problems.
    max_loss, confidence
        As for :func:`select`.

    Returns
    -------
    dict
        By name, the bound of every certified setting and the bound's own confidence.
    """
    _checked(max_loss, confidence)
    certified: dict[str, list[tuple[float, float]]] = {}
    handed_on = 0.0
    for name, settings in families.items():
        risk = (1 - confidence) / len(families) + handed_on
        found = certified[name] = []
        for losses in settings:
            if not _refuted(_in_range(losses), *_checked(max_loss, 1 - risk)):
                break
            found.append((bound(losses, 1 - risk), 1 - risk))
        handed_on = risk if len(found) == len(settings) else 0.0
    return certified


def _refuted(losses: np.ndarray, mean: float, target: float) -> bool:
    """Tell whether the log of all bettors' mean wealth against ``mean`` has ever reached ``target``."""
    with np.errstate(divide="ignore"):
        growth = np.log1p(np.maximum(SHARES * (mean - losses[:, None]) / (1 - mean), -1.0))
    wealth = np.logaddexp.reduce(growth.cumsum(0), axis=-1) - np.log(len(SHARES))
    return len(losses) > 0 and bool(wealth.max() >= target)


def _in_range(losses: Any) -> np.ndarray:
    values = np.asarray(losses, dtype=float)
    if values.ndim != 1:
        raise LossyValueError(f"`losses` has to have one loss for each problem, but has the shape {values.shape}")
    if not (np.abs(values) <= 1).all():
        raise LossyValueError(f"`losses` has to lie in [-1, 1], but has {values[~(np.abs(values) <= 1)][0]}")
    return values


def _checked(max_loss: float, confidence: float) -> tuple[float, float]:
    """Return the limit, and the log of the wealth that refutes it."""
    for name, value, low in (("max_loss", max_loss, -1), ("confidence", confidence, 0)):
        if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not low < value < 1:
            raise LossyValueError(f"`{name}` has to be a number > {low} and < 1, but is {value!r}")
    return float(max_loss), -float(np.log1p(-confidence))


_PER_CENT = Rule("a number > 0 and < 100", lambda x: is_number(x) and 0 < x < 100)
_SURE = Rule("a number >= 50 and < 100", lambda x: is_number(x) and 50 <= x < 100)  # who writes 0.95 means 95 %


def calibrate(
    folder: str | Path,
    max_loss: float = 1.0,
    confidence: float = 95.0,
    modes: Sequence[str] | None = None,
    heads: Mapping[str, Any] | None = None,
) -> Certificate:
    """Certify settings by the answers in a folder that ``evaluate`` has written, and choose the fastest that passes.

    Parameters
    ----------
    folder
        The folder with ``results.jsonl``.
    max_loss
        In points of the score, out of 100.
    confidence
        In per cent, of the whole statement.
    modes
        Labels of the settings to test, for each rule from cautious to bold, in an order decided before looking at the
        answers; by default all, in the evaluation's order.
    heads
        Trained heads, or their folders or repositories, by the rule that uses them.
    """
    _PER_CENT.check("max_loss", max_loss)
    _SURE.check("confidence", confidence)
    plan, found = load_answers(folder)
    if any(answer.score is None for answer in found):
        raise LossyValueError(f"`folder` has to have scores, but its task {plan['task']!r} has no right answers")
    plan, heads = _with_modes(plan, modes), heads or {}
    tested = _tested(plan, by_mode(found), max_loss, confidence)
    certified = [each for each in tested if each.outcome == "certified"]
    best = max(certified, key=lambda each: each.tokens_per_second, default=None)
    rule, sums = None, {}
    if best is not None:
        described = plan["modes"][best.mode]
        used = {name: heads[name] for name in described["heads"] if name in heads}
        if missing := described["heads"].keys() - used.keys():
            name = min(missing)
            raise LossyValueError(f"`heads` has to have the head of the rule {name!r}; add it")
        run = LossyConfig.from_fields(best.config["lossy_mode"], best.config["lossy_config"], used or None)
        rule, sums = run.in_full(), head_sums(run.rule)
        if (rule, sums) != (described["rule"], described["heads"]):
            raise LossyValueError(
                f"`heads` has to have those of the evaluation, but {sorted(sums)} have other weights or thresholds"
            )
    return Certificate(
        task=plan["task"], split=plan["split"], problems=len({*plan["problems"]}),
        digest=hashlib.sha256(json.dumps([plan["problems"], plan.get("scoring")]).encode()).hexdigest(),
        max_loss=max_loss, confidence=confidence, reference=plan["reference"],
        chosen=None if best is None else best.mode, tested=tested, rule=rule,
        temperature=plan["modes"][plan["reference"]]["temperature"],
        target=plan["target"], draft=plan["draft"], heads=sums,
        changes={name: plan[name] for name in ("draft_dtype", "draft_tokens") if name in plan},
        versions=plan["runs"][-1],
    )  # fmt: skip


def _with_modes(plan: Mapping[str, Any], modes: Sequence[str] | None) -> Mapping[str, Any]:
    if modes is None:
        return plan
    if unknown := [label for label in modes if label not in plan["modes"]]:
        raise LossyValueError(f"`modes` has to name some of {list(plan['modes'])}, but names {unknown[0]!r}")
    wanted = [plan["reference"], *(label for label in modes if label != plan["reference"])]
    return {**plan, "modes": {label: plan["modes"][label] for label in wanted}}


def families_of(plan: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the labels of an evaluation's lossy modes by their rule."""
    modes, reference = plan["modes"], plan["reference"]
    families: dict[str, list[str]] = {}
    for label, config in modes.items():
        rule = config.get("lossy_mode")
        if label != reference and rule not in (None, "lossless"):
            families.setdefault(json.dumps(rule), []).append(label)
    if not families:
        raise LossyValueError(
            f"`modes` has to name lossy settings beside {reference!r}, but is {list(modes)}; evaluate some there first"
        )
    if any("top_p" in mode for mode in plan["modes"].values()):
        raise LossyValueError("a certificate covers whole distributions; evaluate without `top_p` (`--top-p`)")
    if plan["draft"] is None or "prompt_lookup_num_tokens" in plan:
        raise LossyValueError(
            "a certificate names its draft, but prompt lookup has none; evaluate with a draft model alone"
        )
    return families


def _tested(
    plan: Mapping[str, Any], modes: Mapping[str, Mapping[int, Answer]], max_loss: float, confidence: float
) -> list[TestedSetting]:
    families, reference = families_of(plan), modes.get(plan["reference"], {})
    losses = {label: _losses(modes.get(label, {}), reference, plan["problems"]) for label in chain(*families.values())}
    found = certify(
        {rule: [losses[label] for label in labels] for rule, labels in families.items()},
        max_loss / 100, confidence / 100,
    )  # fmt: skip
    tested = []
    for rule, labels in families.items():
        for place, label in enumerate(labels):
            config = {k: v for k, v in plan["modes"][label].items() if k not in ("temperature", "heads", "rule")}
            n, own = len(losses[label]), modes.get(label, {}).values()
            speed = sum(x.tokens for x in own) / max(1e-12, sum(x.seconds for x in own)) if own else None
            if place > len(found[rule]) or not n:
                tested.append(TestedSetting(label, rule, config, "not tested", n, tokens_per_second=speed))
                continue
            if place < len(found[rule]):
                outcome, (upper, sure) = "certified", found[rule][place]
            else:  # its bound uses the smallest risk that its rule can have
                outcome, sure = "not certified", 1 - (1 - confidence / 100) / len(families)
                upper = bound(losses[label], sure)
            mean = 100 * sum(losses[label]) / n
            tested.append(
                TestedSetting(label, rule, config, outcome, n, mean, 100 * upper, 100 * sure, speed)
            )  # fmt: skip
    return tested


def _losses(own: Mapping[int, Answer], others: Mapping[int, Answer], problems: Sequence[int]) -> list[float]:
    """Return the loss of score on each problem; one that was answered several times counts once, by its mean."""
    found: dict[int, list[float]] = {}
    for i in sorted(own.keys() & others.keys()):
        found.setdefault(problems[i], []).append(others[i].score - own[i].score)
    return [*map(fmean, found.values())]
