"""Who takes part, and what each of them tells ``generate()``."""

from __future__ import annotations

import copy

import pytest
import torch

from hf_lossy_assist.bench.contenders import Models, StockAssisted, TargetAlone, WithRule, field_of_all
from hf_lossy_assist.bench.trials import Batch, Workload, attempt
from hf_lossy_assist.heads import JudgeConfig, JudgeHead, ModelIdentity
from tests.models import noisy_copy, prompt, tiny

WORK = Workload(max_new_tokens=12)


@pytest.fixture(scope="module")
def models():
    target = tiny()
    target.generation_config.eos_token_id = None
    return Models(target, noisy_copy(target, 0.02))


@pytest.fixture(scope="module")
def judged(models):
    identities = {"target": ModelIdentity.of(models.target), "draft": ModelIdentity.of(models.draft)}
    head = JudgeHead(JudgeConfig(**identities, task="none", threshold=0.5), torch.zeros(32), -10.0)
    return Models(models.target, models.draft, {"judge": head})


def batch(*seeds):
    ids = torch.cat([prompt(6, seed) for seed in seeds or (0,)])
    return Batch(ids, torch.ones_like(ids), 0)


def test_everybody_takes_part_who_can_make_a_difference(models, judged):
    greedy = [c.label for c in field_of_all(models, 5, do_sample=False)]
    sampled = [c.label for c in field_of_all(models, 5, do_sample=True)]
    assert greedy[:3] == sampled[:3] == ["target alone", "stock assisted", "lossless"]
    assert {"dropmatch", "topk", "relaxed", "typical", "ensemble"} <= set(greedy)
    assert set(sampled) - set(greedy) >= {"ears"}
    assert not {"judge", "sprinter", "ears"} & set(greedy)
    assert "judge" in [c.label for c in field_of_all(judged, 5, do_sample=False)]


def test_all_of_them_generate(judged):
    texts = {}
    for contender in field_of_all(judged, 4, do_sample=False):
        trial = attempt(judged, contender, batch(), WORK)
        assert trial.tokens == 12
        assert (trial.stats is None) is (contender.label in ("target alone", "stock assisted"))
        texts[contender.label] = trial.rows[0].tolist()
    assert texts["target alone"] == texts["stock assisted"] == texts["lossless"]
    assert texts["judge"] != texts["lossless"], "this judge finds nothing important"


def test_several_rules_share_a_dict_of_heads(judged):
    both = WithRule("both", ["judge", "topk"], {"topk": {"k": 2}}, 4)
    assert both.keywords(judged, 7)["lossy_head"] == judged.heads
    assert both.keywords(judged, 7)["lossy_config"] == {"topk": {"k": 2}, "seed": 7}
    assert attempt(judged, both, batch(), WORK).stats.accepted_by.keys() == {"judge", "topk"}


def test_stock_drafts_gamma_tokens_and_leaves_the_draft_as_it_was(models):
    before = copy.deepcopy(models.draft.generation_config.to_dict())
    for gamma in (2, 6):
        trial = attempt(models, StockAssisted(gamma=gamma), batch(), Workload(40), meter=True)
        rounds = trial.split.target_calls
        assert gamma * (rounds - 4) < trial.split.draft_calls <= gamma * rounds  # the last ones have less room
    with pytest.raises(RuntimeError, match="midway"), StockAssisted().ready(models):
        raise RuntimeError("midway")
    assert models.draft.generation_config.to_dict() == before


def test_what_is_sampled_depends_on_the_seed_of_the_prompt_alone(models):
    work = Workload(12, temperature=1.5, seed=3)
    for contender in (TargetAlone(), StockAssisted(), WithRule("lossless")):
        one, again = (attempt(models, contender, batch(), work).rows[0].tolist() for _ in range(2))
        other = attempt(models, contender, Batch(batch().ids, batch().mask, 1), work).rows[0].tolist()
        assert one == again != other


def test_a_batch_of_the_target_alone(models):
    together = attempt(models, TargetAlone(), batch(0, 1, 2), WORK)
    apart = [attempt(models, TargetAlone(), batch(seed), WORK).rows[0].tolist() for seed in range(3)]
    assert [row.tolist() for row in together.rows] == apart
    assert together.tokens == 36
