"""From answers to a certificate: all of them at hand, or made one by one until the evidence is enough."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config import parse
from ..errors import LossyValueError
from ..evaluation.answers import Answer, AnswerStore, load_answers
from ..evaluation.evaluate import Evaluation
from .betting import LossTest, bound, certify
from .certificate import Certificate, TestedSetting, head_sums, rule_in_full

Answers = Mapping[str, Mapping[int, Answer]]
"""By mode and problem."""


def calibrate(
    evaluation: Evaluation,
    max_loss: float = 1.0,
    confidence: float = 95.0,
    store: AnswerStore | None = None,
    note: Callable[[str, int, str], None] = lambda label, problems, state: None,
) -> Certificate:
    """Test settings on problems that are answered as the tests ask for them, and certify the fastest that pass.

    The settings of a rule are tested in the order of the evaluation's modes, which has to be from cautious to bold.
    One that is certified makes way for the next; one that can't be any more, even if it lost nothing on all the
    problems that are left, ends its rule's turn.

    Parameters
    ----------
    evaluation
        Models, task, modes and problems. Its reference is what losses are measured against.
    max_loss
        In points of the score, out of 100.
    confidence
        In per cent, of the whole statement.
    store
        Where answers go, and where those are that need not be made again.
    note
        Is told of every test's mode, problems so far, and state: "", "certified" or "given up".

    Examples
    --------
    >>> from hf_lossy_assist import pairs
    >>> from hf_lossy_assist.evaluation.evaluate import named_modes
    >>> from hf_lossy_assist.evaluation.modes import Models
    >>> pair = pairs.load("arithmetic")
    >>> modes = named_modes("plain,topk:k=1")
    >>> evaluation = Evaluation(Models(pair.target, pair.draft), pair.tokenizer, pair.task, modes, "plain", limit=2)
    >>> calibrate(evaluation, max_loss=5).tested[0].outcome
    'not certified'
    """
    if evaluation.process.count > 1:
        raise LossyValueError(
            f"`calibrate` decides after every problem, so it runs in one process, not {evaluation.process.count}: let "
            "them `evaluate`, and calibrate from what they wrote"
        )
    store = AnswerStore() if store is None else store
    families = families_of(evaluation.plan()["modes"], evaluation.reference)
    each = 1 - (1 - _share("confidence", confidence)) / max(1, len(families))
    limits = _share("max_loss", max_loss), each
    turns = [_turn(evaluation, labels, limits, store, note) for labels in families.values()]
    while turns:  # a problem for each rule in turn, so that their speeds are measured side by side
        turns = [turn for turn in turns if next(turn, False)]
    return certificate_of(evaluation.plan(), store.known.values(), max_loss, confidence, evaluation.models.heads)


def _turn(
    evaluation: Evaluation,
    labels: Sequence[str],
    limits: tuple[float, float],
    store: AnswerStore,
    note: Callable[[str, int, str], None],
) -> Iterator[bool]:
    """Test the settings of one rule; yield True after every problem."""
    for label in labels:
        test = LossTest(*limits)
        # Always from the first problem on: which are left would depend on how others did on these.
        for answers in evaluation.run(store, wanted=label.__eq__):
            test.add(answers[evaluation.reference].score - answers[label].score)
            over = test.hopeless(len(evaluation.examples) - test.count)
            note(label, test.count, "certified" if test.certified else "given up" if over else "")
            yield True
            if test.certified or over:
                break
        if not test.certified:
            return


def calibrate_from(
    folder: str | Path,
    max_loss: float = 1.0,
    confidence: float = 95.0,
    modes: Sequence[str] | None = None,
    heads: Mapping[str, Any] | None = None,
) -> Certificate:
    """Certify settings by the answers in a folder that ``evaluate`` has written.

    Parameters
    ----------
    folder
        With ``results.jsonl``.
    max_loss, confidence
        As for :func:`calibrate`.
    modes
        The labels of the settings to test, of each rule from cautious to bold: an order that was decided before looking
        at the answers. All, in the order of the evaluation, by default.
    heads
        Trained heads, or where they are, by the rule that uses them.
    """
    plan, answers = load_answers(folder)
    if modes is not None:
        if unknown := [label for label in modes if label not in plan["modes"]]:
            raise LossyValueError(f"`modes` has to name some of {list(plan['modes'])}, but names {unknown[0]!r}")
        wanted = [plan["reference"], *(label for label in modes if label != plan["reference"])]
        plan = {**plan, "modes": {label: plan["modes"][label] for label in wanted}}
    return certificate_of(plan, answers, max_loss, confidence, heads or {})


def families_of(modes: Mapping[str, Mapping[str, Any]], reference: str) -> dict[str, list[str]]:
    """Return the labels of lossy modes by the names of their rules, in their order."""
    families: dict[str, list[str]] = {}
    for label, config in modes.items():
        rule = config.get("lossy_mode")
        if label != reference and rule not in (None, "lossless"):
            families.setdefault(json.dumps(rule), []).append(label)
    if not families:
        raise LossyValueError(f"`modes` has to name lossy settings beside {reference!r}, but is {list(modes)}")
    return families


def certificate_of(
    plan: Mapping[str, Any], answers: Any, max_loss: float, confidence: float, heads: Mapping[str, Any]
) -> Certificate:
    """Return the certificate that an evaluation's answers give."""
    by_mode: dict[str, dict[int, Answer]] = {}
    for answer in answers:
        by_mode.setdefault(answer.mode, {})[answer.id] = answer
    reference = by_mode.get(plan["reference"], {})
    families = families_of(plan["modes"], plan["reference"])
    losses = {
        label: [reference[i].score - own.score for i, own in sorted(by_mode.get(label, {}).items()) if i in reference]
        for labels in families.values()
        for label in labels
    }
    found = certify(
        {rule: [losses[label] for label in labels] for rule, labels in families.items()},
        _share("max_loss", max_loss), _share("confidence", confidence),
    )  # fmt: skip
    tested = []
    for rule, labels in families.items():
        done = found[rule]
        for place, label in enumerate(labels):
            config = {k: v for k, v in plan["modes"][label].items() if k not in ("temperature", "heads")}
            n, speed = len(losses[label]), _speed(by_mode.get(label, {}))
            if place > len(done) or not n:
                tested.append(TestedSetting(label, rule, config, "not tested", n, tokens_per_second=speed))
                continue
            # What failed was tested with the risk that is its rule's at least.
            upper, sure = done[place] if place < len(done) else (None, 1 - (1 - confidence / 100) / len(families))
            upper = bound(losses[label], sure) if upper is None else upper
            outcome = "certified" if place < len(done) else "not certified"
            mean = 100 * sum(losses[label]) / n
            tested.append(TestedSetting(label, rule, config, outcome, n, mean, 100 * upper, 100 * sure, speed))
    certified = [each for each in tested if each.outcome == "certified"]
    best = max(certified, key=lambda each: each.tokens_per_second, default=None)
    return _statement(plan, by_mode, max_loss, confidence, tested, best, heads)


def _statement(
    plan: Mapping[str, Any],
    by_mode: Answers,
    max_loss: float,
    confidence: float,
    tested: Sequence[TestedSetting],
    best: TestedSetting | None,
    heads: Mapping[str, Any],
) -> Certificate:
    rule, sums, usual = None, {}, {}
    if best is not None:
        described = plan["modes"][best.mode]
        used = {name: heads[name] for name in described["heads"] if name in heads}
        if missing := described["heads"].keys() - used.keys():
            name = min(missing)
            raise LossyValueError(f"the head of the rule {name!r} has to be given, `--head {name}=SOURCE`")
        run = parse(best.config["lossy_mode"], best.config["lossy_config"], used or None)
        rule, sums = rule_in_full(run), head_sums(run.acceptor)
        if sums != described["heads"]:
            raise LossyValueError(f"`heads` has to have those of the evaluation, but {sorted(sums)} have other weights")
        texts = [own for _, own in sorted(by_mode[best.mode].items())]
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
    )  # fmt: skip


def _speed(answers: Mapping[int, Answer]) -> float | None:
    seconds = sum(answer.seconds for answer in answers.values())
    return sum(answer.tokens for answer in answers.values()) / seconds if seconds else None


def _share(name: str, value: float) -> float:
    """Return a number of points, or per cent, as a share of 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 100:
        raise LossyValueError(f"`{name}` has to be a number > 0 and < 100, but is {value!r}")
    return value / 100
