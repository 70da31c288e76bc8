"""Answers lost and won: against texts that are drawn by the model, and labels against rules that decide texts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hf_lossy_assist.acceptors import REGISTRY
from hf_lossy_assist.core.messages import Verification
from hf_lossy_assist.errors import LossyUnsupportedError, LossyValueError
from hf_lossy_assist.evaluation.advice.advising import Advising, target_alone
from hf_lossy_assist.evaluation.advice.outcomes import Labelled
from hf_lossy_assist.evaluation.costs import Costs
from hf_lossy_assist.evaluation.modes import Models
from hf_lossy_assist.training.label_folder import load_mined
from tests.training.parts import labelling, run, tiny_parts

LAWS = torch.zeros(1, 1)
STEADY = Costs((1,), (0.0,), (0.0,), (0.1,), {1: (1.0,), 33: (1.0,)})


@pytest.fixture(scope="module")
def mined(tmp_path_factory):
    """Return a folder of labels, and its models."""
    folder, parts = tmp_path_factory.mktemp("mined"), tiny_parts(seed=2, noise=0.2)
    run(folder, labelling(parts, 8))
    return folder, Models(parts.target, parts.draft), parts


@pytest.mark.parametrize(
    ("name", "settings"),
    [("min_p", {"tau": 0.6}), ("typical", {"epsilon": 0.6}), ("fsd", {"threshold": 0.19}), ("topk", {"k": 2})],
)
def test_a_rule_decides_labels_as_it_decides_texts(mined, name, settings):
    """Against forwards over each label's text."""
    folder, models, _ = mined
    labels, rule = Labelled.read(folder, models), REGISTRY[name](**settings)
    expected, important = [], []
    texts = {row["prompt_id"]: row for row in load_mined(folder).prompts}
    for row in sorted(load_mined(folder).tokens, key=lambda row: row["prompt_id"]):
        text = texts[row["prompt_id"]]
        ids = torch.tensor([[*text["prompt_tokens"], *text["last_response"][: row["index"]]]])
        with torch.no_grad():
            p, q = (model(ids).logits[:, -1:] for model in (models.target, models.draft))
        assert q.argmax() == row["draft_token"]
        v = Verification(torch.tensor([[row["draft_token"]]]), torch.cat([p, p], 1), draft_logits=q)
        expected.append(float(rule.keep(v)))
        important.append(row["important"])
    order = np.argsort(labels.problems, kind="stable")
    assert labels.kept(rule, 5)[order].tolist() == expected
    assert labels.important[order].tolist() == important
    assert 0 < sum(expected) < len(expected)


def test_a_rule_that_looks_around_finds_matches(mined):
    """``regret`` allows g, 2 g and 3 g at the three places of a draft; ``fly`` wants a match behind."""
    labels = Labelled.read(*mined[:2])
    lost = (labels.p.amax(-1) - labels.p.gather(-1, labels.x[:, None])[:, 0]).double()
    g = float(lost.median()) / 2
    expected = sum((lost <= g * k).double() for k in (1, 2, 3)) / 3
    assert labels.kept(REGISTRY["regret"](local_regret=g), 3).tolist() == expected.tolist()
    assert len({*expected.tolist()}) > 2
    assert {*labels.kept(REGISTRY["fly"](window=3, theta=0), 3).tolist()} == {1 / 3}
    assert labels.kept(REGISTRY["dropmatch"](dropout=0.1), 3) is None


@pytest.mark.parametrize(
    ("of", "said"),
    [
        (lambda models: (Models(models.draft, models.draft), None), "of the target, "),
        (lambda models: (models, "gsm8k"), "the name was 'checksum' and is 'gsm8k'"),
    ],
)
def test_labels_of_others_are_refused(mined, of, said):
    folder, models, _ = mined
    with pytest.raises(LossyValueError, match="`labels`") as error:
        Labelled.read(folder, *of(models))
    assert said in str(error.value)


def test_a_folder_without_labels_is_refused(mined, tmp_path):
    with pytest.raises(LossyValueError, match="`labels` has to be a folder"):
        Labelled.read(tmp_path, mined[1])


def test_advice_has_answers_lost_and_won(mined, monkeypatch):
    """Without labels nothing is claimed; with them, ``lossless`` changes nothing, and ``everything`` the most."""
    monkeypatch.setattr(Advising, "_costs", lambda self, length: [STEADY] * 3)
    folder, models, parts = mined
    prompts = [list(prompt.tokens) for prompt in parts.prompts(3)]
    answers = target_alone(models, parts.tokenizer, prompts, max_new_tokens=12)
    given = {"modes": "topk:k=2", "gammas": (3,), "guard": 0}
    silent = Advising(answers, **given).run()
    assert {(row.lost, row.won) for row in silent.rows} == {(None, None)}
    assert "of 100" not in str(silent)
    advice = Advising(answers, **given, labels=folder).run()
    rows = {row.mode: row for row in advice.rows}
    assert rows["lossless"].lost == pytest.approx((0, 0, 0), abs=1e-3)
    for name in ("lost", "won"):
        one, low, high = getattr(rows["everything"], name)
        assert low < one < high
        assert one >= getattr(rows["topk:k=2"], name)[0] >= 0
    assert "lost" in str(advice)
    assert "predicted, not measured" in advice.next_step
    with pytest.raises(LossyUnsupportedError, match="`labels`"):
        Advising(target_alone(models, parts.tokenizer, prompts, temperature=1.0), labels=folder).run()


def drawn(rng, problems: int, each: int, share: float, alike: float, again: float, solved_share: float) -> Labelled:
    """Return labels of problems whose π is Beta distributed; a changed answer is right with probability ``again``."""
    solved = rng.random(problems) < solved_share
    pi = rng.beta(share * (1 / alike - 1), (1 - share) * (1 / alike - 1), size=problems)
    owner = np.repeat(np.arange(problems), each)
    important = rng.random(len(owner)) < pi[owner]
    right = np.where(important, ~solved[owner] & (rng.random(len(owner)) < again), solved[owner]).astype(float)
    return Labelled(owner, important, right, np.ones(len(owner)), solved, LAWS, LAWS, LAWS)


def simulated(rng, share: float, alike: float, again: float, right: bool, others: np.ndarray) -> float:
    """Return how often an answer is right in the end: each text has its problem's π, and each token its own chance."""
    runs = 4000
    count = len(others)
    pi = rng.beta(share * (1 / alike - 1), (1 - share) * (1 / alike - 1), size=(runs, count))
    state = np.full((runs, count), right)
    for i in range(int(others.max())):
        changed = (rng.random((runs, count)) < pi) & (i < others)
        state = np.where(changed, ~state & (rng.random((runs, count)) < again), state)
    return float(state.mean())


@pytest.mark.parametrize(("share", "alike", "again"), [(0.2, 0.02, 0.1), (0.3, 0.2, 0.0), (0.1, 0.1, 0.25)])
def test_outcomes_are_those_of_simulated_texts(share, alike, again):
    """With 1,500 labelled problems the estimates lie within 1.5 of 100 answers of a simulation."""
    rng = np.random.default_rng(0)
    labels = drawn(rng, 1500, 8, share, alike, again, 0.6)
    others = np.array([0, 1, 2, 3, 5, 8])
    found = labels.outcomes(np.ones(12000), others)
    solved = 100 * labels.solved.mean()
    lost = solved * (1 - simulated(rng, share, alike, again, True, others))
    won = (100 - solved) * simulated(rng, share, alike, again, False, others)
    assert found["lost"][0] == pytest.approx(lost, abs=1.5)
    assert found["won"][0] == pytest.approx(won, abs=1.0)


def test_intervals_hold_what_many_labels_say():
    """Of 60 sets of labels, at least 52 have the truth within their 95 % intervals (1 % of the binomial lie below)."""
    rng = np.random.default_rng(1)
    others = np.full(400, 4)
    truth = drawn(rng, 20_000, 8, 0.2, 0.1, 0.1, 0.6).outcomes(np.ones(160_000), others)
    inside = {"lost": 0, "won": 0}
    for _ in range(60):
        found = drawn(rng, 80, 8, 0.2, 0.1, 0.1, 0.6).outcomes(np.ones(640), others)
        for name, (_, low, high) in found.items():
            inside[name] += low <= truth[name][0] <= high
    assert min(inside.values()) >= 52


def test_a_rule_that_keeps_what_is_unimportant_loses_nothing():
    labels = drawn(np.random.default_rng(2), 100, 6, 0.3, 0.1, 0.1, 0.5)
    found = labels.outcomes((~labels.important).astype(float), np.full(9, 7))
    assert found["lost"] == pytest.approx((0, 0, 0), abs=0.05)
    assert found["won"] == pytest.approx((0, 0, 0), abs=0.05)
    assert labels.outcomes(np.ones(600), np.zeros(9))["lost"] == pytest.approx((0, 0, 0), abs=0.05)
