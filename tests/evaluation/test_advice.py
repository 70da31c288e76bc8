"""What advice says of walks that were worked out by hand."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest

import hf_lossy_assist
from hf_lossy_assist.drafting.draft_ends import LONGEST
from hf_lossy_assist.errors import LossyError, LossyUnsupportedError, LossyValueError
from hf_lossy_assist.evaluation.advising import Advice, Advising, Replayed, target_alone
from hf_lossy_assist.evaluation.answers import AnswerStore, load_answers
from hf_lossy_assist.evaluation.modes import EVERYTHING, DecodingMode
from hf_lossy_assist.evaluation.replay import Walk
from hf_lossy_assist.evaluation.requests import batches_of, run_request
from hf_lossy_assist.evaluation.speeds import Costs, Speeds
from hf_lossy_assist.pairs import Pair
from tests import dflash_heads
from tests.nightly import nightly

NOTHING = np.zeros(4)
STEADY = Costs(0.1, {1: 1.0, 33: 1.0})


def replayed(label: str, loss: float, **rounds: float) -> Replayed:
    """Return walks over four texts of 40 tokens by their draft lengths, such as ``g5=10``."""
    walks = {int(name[1:]): np.full(4, each) for name, each in rounds.items()}
    return Replayed(
        DecodingMode(label, label),
        {
            gamma: Walk(
                gamma, each[:, None] * np.eye(gamma + 1)[gamma], 40 - each, NOTHING, NOTHING + 40 * loss, NOTHING
            )
            for gamma, each in walks.items()
        },
    )


@pytest.fixture
def advice() -> Advice:
    """A drafted token takes a tenth of a token of the target; reading more than one takes no longer."""
    modes = [
        replayed("lossless", 0.0, g5=10.0),
        replayed("exact", 0.0, g5=9.0),
        replayed("near", 0.01, g2=14.0, g8=6.0),
        replayed(EVERYTHING, 0.02, g8=4.5),
    ]
    speeds = Speeds(np.full(4, 40.0), STEADY, (STEADY, STEADY))
    return Advice(modes, speeds, 0.9)


def test_everything_is_recommended_only_by_its_name(advice):
    assert advice.best().row.mode == "near"
    assert advice.best(EVERYTHING).row.mode == EVERYTHING


def test_a_faster_rule_that_loses_nothing_is_of_the_front(advice):
    assert [row.mode for row in advice.front] == ["exact", "near"]


def test_where_drafting_does_not_pay_the_target_alone_is_recommended(advice, tmp_path):
    """A drafted token that takes longer than one of the target: eight of them cost more than they can bring."""
    costs = replace(STEADY, drafted=2.0)
    dear = replace(advice, speeds=replace(advice.speeds, costs=costs, repeats=(costs, costs)))
    best = dear.best()
    assert (best.row, best.settings, str(best)) == (None, {"do_sample": False}, "plain, without a draft")
    assert "drafting does not pay" in " ".join(dear.said)
    assert dear.said[-2].startswith("Recommended for speed: plain, without a draft: drafting makes it 0.")
    assert dear.entry["recommended"] == "plain, without a draft"
    assert dear.best("near").row.mode == "near"
    assert advice.best().row.times_alone > 1


def test_where_repeats_differ_the_recommendation_says_how_little_is_sure(advice):
    torn = replace(advice, speeds=replace(advice.speeds, repeats=(STEADY, replace(STEADY, drafted=0.2))))
    assert torn.best().row.mode == "lossless", "no interval lies above it now"
    (said,) = (line for line in torn.said if line.startswith("Recommended"))
    assert said.startswith("Recommended for speed: lossless@5: ")
    assert "no rule is surely faster. Little is sure, since in 2 repeats a drafted token took 100 to 200 ms" in said
    assert "evaluate" in torn.next_step()
    assert (torn.entry["steady"], torn.entry["recommended"]) == (False, "lossless@5")
    assert (advice.entry["steady"], advice.entry["recommended"]) == (True, "near@8")
    assert "Little is sure" not in advice.how_sure
    assert "computing time" not in advice.said[-1]
    thread = replace(advice, speeds=replace(advice.speeds, costs=replace(STEADY, clock="thread")))
    assert thread.said[-1].endswith("in computing time of one thread, which is steadier here.")
    assert "off-line" in thread.said[-1]


def test_default_drafts_are_tried_too(models, tokenizer, tmp_path):
    answers = target_alone(replace(models, tokenizer=tokenizer), [[1, 5, 9], [1, 7, 3]], max_new_tokens=20)
    advice = Advising(answers, "topk@auto", out=tmp_path).run()
    assert all("auto" in one.walks for one in advice.replayed)
    assert advice.best("topk").settings["num_assistant_tokens"] == "auto"
    batches = batches_of([[1, 5, 9], [1, 7, 3]])
    mode = DecodingMode("lossless", "lossless", {"stop_drafting": {"by": "acceptance", "threshold": 0.5}}, LONGEST)
    seen = [run_request(models, mode, batch, 20).work[0][0] for batch in batches]
    assert advice.replayed[0].walks["auto"].rounds.tolist() == seen


@pytest.mark.parametrize("first", nightly(["advise", "evaluate"], but=["evaluate"]))
def test_advise_and_evaluate_share_the_target_s_texts(pair, tmp_path, requests, first):
    """Whoever comes second makes no text that is there: one record for each mode and problem."""
    models, given = (pair.target, pair.draft), {"limit": 2, "max_new_tokens": 12, "out": tmp_path}

    def advised():
        return hf_lossy_assist.advise(*models, pair.tokenizer, pair.task, modes="topk", **given)

    def evaluated():
        more = {"tokenizer": pair.tokenizer, "task": pair.task}
        return hf_lossy_assist.evaluate(*models, modes="plain,topk", **more, **given)

    advice = advised() if first == "advise" else evaluated() and advised()
    assert evaluated().modes["plain"].n == len(advice.speeds.tokens) == 2
    assert requests.count(("plain", 1)) == requests.count(("topk", 1)) == 2
    records = load_answers(tmp_path)[1]
    assert sorted((x.mode, x.id) for x in records) == [("plain", 0), ("plain", 1), ("topk", 0), ("topk", 1)]
    assert advice.speeds.tokens.tolist() == [x.tokens for x in records if x.mode == "plain"]


def test_tokens_that_a_text_does_not_tell_stand_beside_it(models, tokenizer, tmp_path):
    whole = target_alone(replace(models, tokenizer=tokenizer), [[1, 5, 9], [1, 7, 3]], max_new_tokens=20)
    store = AnswerStore(tmp_path, whole.plan())
    list(whole.run(store))
    for i, batch in enumerate(whole.batches):
        made = run_request(models, whole.modes[0], batch, 20).rows[0].tolist()
        assert whole.tokens_of(AnswerStore(tmp_path, whole.plan())[whole.reference, i]) == made
    with pytest.raises(LossyValueError, match="`out`"):
        whole.tokens_of(replace(store[whole.reference, 0], text="crc32:00000000", ids=()))


@pytest.mark.parametrize(("modes", "said"), [
    ("plain", "`modes` has to name rules"),
    *((mode, "judge position by position.*measure a dozen prompts") for mode in (
        "regret", "fly", "dropmatch", "topk:tree.depth=3:tree.top_k=2:tree.nodes=4"
    )),
])  # fmt: skip
def test_wrong_arguments_are_refused_before_any_forward(models, tokenizer, monkeypatch, modes, said):
    monkeypatch.setattr(Advising, "laws", None)
    answers = target_alone(replace(models, tokenizer=tokenizer), [[1, 5, 9]])
    with pytest.raises(LossyError, match=said):
        Advising(answers, modes).run()


@pytest.mark.parametrize("drafting", ["look-up", "a head on states"])
def test_drafts_of_other_drafters_are_for_evaluate_to_measure(models, tokenizer, drafting):
    other = replace(models, draft=None, lookup=4) if drafting == "look-up" else Pair(*dflash_heads.trained_pair())
    with pytest.raises(LossyUnsupportedError, match="of a draft model alone; of others, measure a dozen prompts"):
        Advising(target_alone(replace(other, tokenizer=tokenizer), [[1, 5, 9]]))


@pytest.mark.parametrize(
    "own", [{"assistant_confidence_threshold": 0.4}, {"num_assistant_tokens_schedule": "heuristic"}]
)
def test_so_are_drafts_whose_length_the_models_choose(models, tokenizer, own):
    draft = copy.deepcopy(models.draft)
    draft.generation_config.update(**own)
    with pytest.raises(LossyUnsupportedError, match="set both to None, or measure a dozen prompts"):
        Advising(target_alone(replace(models, draft=draft, tokenizer=tokenizer), [[1, 5, 9]]))


@pytest.mark.parametrize("kept", [False, True])
def test_answers_are_scored_where_they_are_kept(pair, tmp_path, kept):
    evaluation = target_alone(pair, pair.task, tmp_path if kept else None, limit=1, max_new_tokens=4)
    (answers,) = evaluation.run()
    assert (answers[evaluation.reference].score is not None) is kept


def test_a_text_is_one_prompt(models, tokenizer):
    evaluation = target_alone(replace(models, tokenizer=tokenizer), "Question: 1?")
    assert [example.prompt for example in evaluation.examples] == ["Question: 1?"]
