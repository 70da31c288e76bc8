"""From answers to a certificate."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from ..errors import LossyValueError
from ..generation.certificate import Certificate, TestedSetting, head_sums
from ..generation.config import LossyConfig
from ..values import Rule, is_number
from .answers import Answer, by_mode, load_answers, read_plan
from .betting import bound, certify, fewest

_PER_CENT = Rule("a number > 0 and < 100", lambda x: is_number(x) and 0 < x < 100)


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
    plan, found = load_answers(folder)
    if any(answer.score is None for answer in found):
        raise LossyValueError(f"`folder` has to have scores, but its task {plan['task']!r} has no right answers")
    plan, answers, heads = _with_modes(plan, modes), by_mode(found), heads or {}
    tested = _tested(plan, answers, max_loss, confidence)
    certified = [each for each in tested if each.outcome == "certified"]
    timed = all(each.tokens_per_second is not None for each in certified)

    def pace(setting: TestedSetting) -> float:
        """Return tokens per second, or per round if a certified setting was not timed."""
        tokens, rounds = (
            sum(getattr(x, name) for x in answers[setting.mode].values()) for name in ("tokens", "rounds")
        )
        return setting.tokens_per_second if timed else tokens / max(1, rounds)

    best = max(certified, key=pace, default=None)
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
        target=plan["target"], draft=plan["draft"], heads=sums, versions=plan["runs"][-1],
    )  # fmt: skip


def problems_needed(
    folder: str | Path, max_loss: float, confidence: float, modes: Sequence[str] | None = None
) -> tuple[int, int]:
    """Return how many problems a folder has, and how many could certify a setting that loses nothing on any."""
    plan = _with_modes(read_plan(Path(folder)), modes)
    risk = (1 - _share("confidence", confidence)) / len(families_of(plan))
    return len({*plan["problems"]}), fewest(_share("max_loss", max_loss), 1 - risk)


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
        raise LossyValueError(f"`modes` has to name lossy settings beside {reference!r}, but is {list(modes)}")
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
        _share("max_loss", max_loss), _share("confidence", confidence),
    )  # fmt: skip
    tested = []
    for rule, labels in families.items():
        for place, label in enumerate(labels):
            config = {k: v for k, v in plan["modes"][label].items() if k not in ("temperature", "heads", "rule")}
            n, speed = len(losses[label]), _speed(modes.get(label, {}))
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


def _speed(answers: Mapping[int, Answer]) -> float | None:
    """Return tokens per second; None without answers, or where modes answered together."""
    seconds = [answer.seconds for answer in answers.values()]
    return None if None in seconds or not sum(seconds) else sum(x.tokens for x in answers.values()) / sum(seconds)


def _share(name: str, value: float) -> float:
    _PER_CENT.check(name, value)
    return value / 100
