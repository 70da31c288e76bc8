"""What advice says of walks that were worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hf_lossy_assist.drafting.draft_ends import LONGEST
from hf_lossy_assist.errors import LossyValueError
from hf_lossy_assist.evaluation.advice.advice import Advice, Replayed
from hf_lossy_assist.evaluation.advice.advising import Advising
from hf_lossy_assist.evaluation.advice.replay import Walk
from hf_lossy_assist.evaluation.answers import Answer
from hf_lossy_assist.evaluation.costs import Costs
from hf_lossy_assist.evaluation.modes import EVERYTHING, DecodingMode, Models
from hf_lossy_assist.evaluation.requests import batches_of, run_request

NOTHING = np.zeros(4)


def replayed(label: str, loss: float, **rounds: float) -> Replayed:
    """Return walks over four texts of 40 tokens by their draft lengths, such as ``g5=10``."""
    walks = {int(name[1:]): np.full(4, each) for name, each in rounds.items()}
    return Replayed(
        DecodingMode(label, label),
        {
            gamma: Walk(gamma, each[:, None] * np.eye(gamma + 1)[gamma], 40 - each, *[NOTHING] * 3)
            for gamma, each in walks.items()
        },
        losses={"tv": loss, "kl": loss, "outside": 0.0},
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
    costs = Costs((1,), (0.0,), (0.0,), (0.1,), {1: (1.0,), 33: (1.0,)})
    keeping = {8: modes[-1].walks[8]}
    return Advice(modes, np.full(4, 40.0), 1.0, costs, 0.9, lambda share: keeping, {"do_sample": True})


def test_everything_is_recommended_only_by_its_name(advice):
    assert advice.best().row.mode == "near"
    assert advice.best(EVERYTHING).row.mode == EVERYTHING


def test_a_faster_rule_that_loses_nothing_is_of_the_front(advice):
    assert [row.mode for row in advice.front] == ["exact", "near"]


def test_other_costs_leave_the_setting_that_ran(advice):
    ran = replace(advice, seen={"setting": "near@8", "prompts": 4, "tokens_per_call": 6.5, "predicted": 6.7})
    elsewhere = ran.with_draft_cost(0.9)
    assert elsewhere.best().row.gamma == 2 != advice.best().row.gamma
    assert ran.said[-1] == elsewhere.said[-1]
    assert ran.said[-1].startswith("near@8 ran on 4 of the prompts: 6.50 tokens per call, predicted 6.70.")


def test_a_given_draft_cost_is_of_all_that_is_written(models, tokenizer, tmp_path):
    given = {"modes": "topk", "max_new_tokens": 8, "guard": 0}
    advice = Advising(models, tokenizer, [[1, 5, 9]], draft_cost=0.25, out=tmp_path, **given).run()
    assert advice.draft_cost == pytest.approx(0.25)
    assert '"draft_cost": 0.25' in (tmp_path / "advice.json").read_text(encoding="utf-8")


def test_default_drafts_are_tried_too(models, tokenizer, tmp_path):
    given = {"max_new_tokens": 20, "guard": 0, "out": tmp_path}
    advice = Advising(models, tokenizer, [[1, 5, 9], [1, 7, 3]], "topk@auto", **given).run()
    assert (tmp_path / "advice.png").exists()
    assert all("auto" in one.walks for one in advice.replayed)
    assert advice.best("topk").settings["num_assistant_tokens"] == "auto"
    batches = batches_of([[1, 5, 9], [1, 7, 3]])
    mode = DecodingMode("lossless", "lossless", {"stop_drafting": {"by": "acceptance", "threshold": 0.5}}, LONGEST)
    seen = [run_request(models, mode, batch, 20).work[0][0] for batch in batches]
    assert advice.replayed[0].walks["auto"].rounds.tolist() == seen


def test_known_answers_end_as_the_tokenizer_s_and_empty_ones_are_made(pair, monkeypatch):
    end = pair.tokenizer.eos_token_id
    monkeypatch.setattr(pair.target.generation_config, "eos_token_id", [end - 1, end, end + 1])
    known = {i: Answer("plain", i, 1.0, 3, 3, 0, None, text, cut=not text) for i, text in enumerate(("1 + 2", ""))}
    given = (Models(pair.target, pair.draft), pair.tokenizer, [[5, 9, 7], [7, 3, 8]])
    said, made = Advising(*given, max_new_tokens=8, answers=known)._texts
    assert said["ids"][-1] == end
    assert made["ids"].tolist() == Advising(*given, max_new_tokens=8)._texts[1]["ids"].tolist()


@pytest.mark.parametrize(("given", "said"), [
    ({"draft_cost": -1}, "`draft_cost` has to be a number above 0"),
    ({"modes": "min_p@auto", "temperature": 1.0}, "'min_p@auto', but drawn drafts are replayed with a number"),
])  # fmt: skip
def test_wrong_arguments_are_refused_before_any_forward(models, tokenizer, monkeypatch, given, said):
    monkeypatch.setattr(Advising, "laws", None)
    with pytest.raises(LossyValueError, match=said):
        Advising(models, tokenizer, [[1, 5, 9]], **given).run()
