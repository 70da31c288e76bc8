"""From answers to a certificate: answers at hand, or made one by one until the evidence is enough."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from ...errors import LossyValueError
from ...generation.certificate import Certificate, TestedSetting, head_sums
from ...generation.config import LossyConfig
from ...values import Rule, is_number
from ..answers import Answer, AnswerStore, by_mode, load_answers
from ..evaluation import Evaluation
from .betting import LossTest, bound, certify, growth_beyond, growth_bound

_PER_CENT = Rule("a number > 0 and < 100", lambda x: is_number(x) and 0 < x < 100)
_GROWTH = Rule("a number >= 0 and < 900, in per cent", lambda x: is_number(x) and 0 <= x < 900)


def calibrate(
    evaluation: Evaluation,
    max_loss: float = 1.0,
    confidence: float = 95.0,
    store: AnswerStore | None = None,
    note: Callable[[str, int, int, str], None] = lambda label, problems, expected, state: None,
    max_longer: float | None = None,
) -> Certificate:
    """Answer problems until every rule's settings are tested, and certify the fastest setting that passes.

    The modes of a rule have to go from cautious to bold. A certified setting makes way for its rule's next one. A
    setting that the remaining problems can no longer certify, even without a loss, ends its rule's turn.

    Parameters
    ----------
    evaluation
        Models, task, modes and problems. Losses are measured against its reference.
    max_loss
        In points of the score, out of 100.
    confidence
        In per cent, of the whole statement.
    store
        Receives the answers; problems answered there are not answered again.
    note
        Called after every problem with the mode, its problems so far, the expected number, and the state: "",
        "certified" or "given up".
    max_longer
        By how many per cent a setting's answers may be longer than the reference's on average, in tokens; None for any
        length.

    Examples
    --------
    >>> from hf_lossy_assist import pairs
    >>> from hf_lossy_assist.evaluation.modes import Models, parse_modes
    >>> pair = pairs.load("arithmetic")
    >>> modes = parse_modes("plain,topk:k=1")
    >>> evaluation = Evaluation(Models(pair.target, pair.draft), pair.tokenizer, pair.task, modes, "plain", limit=2)
    >>> calibrate(evaluation, max_loss=5).tested[0].outcome
    'not certified'
    """
    if evaluation.process.count > 1:
        raise LossyValueError(
            f"`calibrate` decides after every problem, so it runs in one process, not {evaluation.process.count}: "
            "`evaluate` in many, and calibrate from the folder they wrote"
        )
    store = AnswerStore() if store is None else store
    families, limit = families_of(evaluation.plan()), _share("max_loss", max_loss)
    each = 1 - (1 - _share("confidence", confidence)) / max(1, len(families))
    longer = _longer(max_longer)
    turns = [_turn(evaluation, labels, (limit, each), longer, store, note) for labels in families.values()]
    while turns:  # rules take turns by problem, so their speeds are measured under equal load
        turns = [turn for turn in turns if next(turn, False)]
    heads = evaluation.models.heads
    return certificate_of(evaluation.plan(), store.known.values(), max_loss, confidence, heads, max_longer)


def _turn(
    evaluation: Evaluation,
    labels: Sequence[str],
    limits: tuple[float, float],
    longer: float | None,
    store: AnswerStore,
    note: Callable[[str, int, int, str], None],
) -> Iterator[bool]:
    """Test the settings of one rule; yield True after every problem."""
    for label in labels:
        test, lengths, certified = LossTest(*limits), LossTest(0.0, limits[1]), False
        # Every test begins at the first problem, or its problems would depend on other settings' losses.
        for answers in evaluation.run(store, wanted=label.__eq__):
            own, other = answers[label], answers[evaluation.reference]
            test.add(other.score - own.score)
            if longer is not None:
                lengths.add(float(growth_beyond(longer, own.tokens, other.tokens, evaluation.length)))
            limit = len(evaluation.examples)
            over = test.hopeless(limit - test.count)
            certified = test.certified and (longer is None or lengths.certified)
            state = "certified" if certified else "given up" if over else ""
            note(label, test.count, test.expected(limit), state)
            yield True
            if certified or over:
                break
        if not certified:
            return


def calibrate_from(
    folder: str | Path,
    max_loss: float = 1.0,
    confidence: float = 95.0,
    modes: Sequence[str] | None = None,
    heads: Mapping[str, Any] | None = None,
    max_longer: float | None = None,
) -> Certificate:
    """Certify settings by the answers in a folder that ``evaluate`` has written.

    Parameters
    ----------
    folder
        The folder with ``results.jsonl``.
    max_loss, confidence, max_longer
        As for :func:`calibrate`.
    modes
        Labels of the settings to test, for each rule from cautious to bold, in an order decided before looking at the
        answers; by default all, in the evaluation's order.
    heads
        Trained heads, or their folders or repositories, by the rule that uses them.
    """
    plan, answers = load_answers(folder)
    if modes is not None:
        if unknown := [label for label in modes if label not in plan["modes"]]:
            raise LossyValueError(f"`modes` has to name some of {list(plan['modes'])}, but names {unknown[0]!r}")
        wanted = [plan["reference"], *(label for label in modes if label != plan["reference"])]
        plan = {**plan, "modes": {label: plan["modes"][label] for label in wanted}}
    return certificate_of(plan, answers, max_loss, confidence, heads or {}, max_longer)


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


def certificate_of(
    plan: Mapping[str, Any], answers: Iterable[Answer], max_loss: float, confidence: float, heads: Mapping[str, Any],
    max_longer: float | None = None,
) -> Certificate:  # fmt: skip
    modes = by_mode(answers)
    tested = _tested(plan, modes, max_loss, confidence, max_longer)
    certified = [each for each in tested if each.outcome == "certified"]
    timed = all(each.tokens_per_second is not None for each in certified)

    def pace(setting: TestedSetting) -> float:
        """Return tokens per second, or per round if a certified setting was not timed."""
        tokens, rounds = (sum(getattr(x, name) for x in modes[setting.mode].values()) for name in ("tokens", "rounds"))
        return setting.tokens_per_second if timed else tokens / max(1, rounds)

    best = max(certified, key=pace, default=None)
    rule, sums, usual = None, {}, {}
    if best is not None:
        described = plan["modes"][best.mode]
        used = {name: heads[name] for name in described["heads"] if name in heads}
        if missing := described["heads"].keys() - used.keys():
            name = min(missing)
            raise LossyValueError(f"`heads` has to have the head of the rule {name!r}; add it")
        run = LossyConfig.from_fields(best.config["lossy_mode"], best.config["lossy_config"], used or None)
        rule, sums = run.in_full(), head_sums(run.rule)
        if sums != described["heads"]:
            raise LossyValueError(f"`heads` has to have those of the evaluation, but {sorted(sums)} have other weights")
        texts = [own for _, own in sorted(modes[best.mode].items())]
        usual = {
            "mean_accepted": [own.accepted / max(1, own.rounds) for own in texts],
            "lossy_share": [own.lossy / max(1, own.tokens) for own in texts],
        }
    return Certificate(
        task=plan["task"], split=plan["split"], problems=len(plan["problems"]),
        digest=hashlib.sha256(json.dumps([plan["problems"], plan.get("scoring")]).encode()).hexdigest(),
        max_loss=max_loss, confidence=confidence, reference=plan["reference"],
        chosen=None if best is None else best.mode, tested=tested, rule=rule,
        temperature=plan["modes"][plan["reference"]]["temperature"],
        target=plan["target"], draft=plan["draft"], heads=sums, usual=usual, versions=plan["runs"][-1],
        max_longer=max_longer,
    )  # fmt: skip


def _tested(
    plan: Mapping[str, Any], modes: Mapping[str, Mapping[int, Answer]], max_loss: float, confidence: float,
    max_longer: float | None,
) -> list[TestedSetting]:  # fmt: skip
    families, reference = families_of(plan), modes.get(plan["reference"], {})
    losses, lengths = {}, {}
    for label in chain(*families.values()):
        both = [(own, reference[i]) for i, own in sorted(modes.get(label, {}).items()) if i in reference]
        losses[label] = [other.score - own.score for own, other in both]
        lengths[label] = [own.tokens for own, _ in both], [other.tokens for _, other in both]
    longer, most, growths = _longer(max_longer), plan["max_new_tokens"], None
    if longer is not None:
        growths = {
            rule: [growth_beyond(longer, *lengths[x], most) for x in labels] for rule, labels in families.items()
        }
    found = certify(
        {rule: [losses[label] for label in labels] for rule, labels in families.items()},
        _share("max_loss", max_loss), _share("confidence", confidence), growths,
    )  # fmt: skip
    tested = []
    for rule, labels in families.items():
        for place, label in enumerate(labels):
            config = {k: v for k, v in plan["modes"][label].items() if k not in ("temperature", "heads")}
            n, speed = len(losses[label]), _speed(modes.get(label, {}))
            if place > len(found[rule]) or not n:
                tested.append(TestedSetting(label, rule, config, "not tested", n, tokens_per_second=speed))
                continue
            if place < len(found[rule]):
                outcome, (upper, sure) = "certified", found[rule][place]
            else:  # its bound uses the smallest risk that its rule can have
                outcome, sure = "not certified", 1 - (1 - confidence / 100) / len(families)
                upper = bound(losses[label], sure)
            growth = most_growth = None
            if longer is not None:
                own, other = lengths[label]
                growth, most_growth = 100 * (sum(own) / sum(other) - 1), 100 * growth_bound(own, other, most, sure)
            tested.append(
                TestedSetting(
                    label, rule, config, outcome, n, 100 * sum(losses[label]) / n, 100 * upper, 100 * sure, speed,
                    growth, None if most_growth == math.inf else most_growth,
                )
            )  # fmt: skip
    return tested


def _speed(answers: Mapping[int, Answer]) -> float | None:
    """Return tokens per second; None without answers, or where modes answered together."""
    seconds = [answer.seconds for answer in answers.values()]
    return None if None in seconds or not sum(seconds) else sum(x.tokens for x in answers.values()) / sum(seconds)


def _longer(max_longer: float | None) -> float | None:
    if max_longer is None:
        return None
    _GROWTH.check("max_longer", max_longer)
    return max_longer / 100


def _share(name: str, value: float) -> float:
    _PER_CENT.check(name, value)
    return value / 100
