"""Modes that share rows: each has the tokens and the rounds that it has alone, and the forwards are fewer."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from hf_lossy_assist import pairs
from hf_lossy_assist.evaluation.evaluate import named_modes
from hf_lossy_assist.evaluation.modes import Models
from hf_lossy_assist.evaluation.requests import Ending, batches_of, run_request
from hf_lossy_assist.evaluation.shared_rounds import run_together, together

RULES = (
    "lossless,everything,topk:k=3,typical:epsilon=0.02,relaxed:top_n=4:delta=0.6,ensemble:weight=0.4,near_top:alpha=0.7,"
    "lenience:factor=0.1,fsd:threshold=0.3,fly:window=2:theta=0.1,margin:theta=0.5,regret:local_regret=2,min_p:tau=0.1,"
    "judge:threshold=0.5,dropmatch:dropout=0,dropmatch:dropout=0:criterion=naive,topk+typical,topk:k=4:strict_first_n=6,topk:k=4:budget=0.1"
)


@pytest.fixture(scope="module")
def loaded():
    return pairs.load("arithmetic", dtype=torch.float32)


@pytest.fixture(scope="module")
def models(loaded):
    return Models(loaded.target, loaded.draft, loaded.rule_heads, tokenizer=loaded.tokenizer)


@pytest.fixture(scope="module")
def batch(loaded):
    prompts = [loaded.task.encode(example, loaded.tokenizer) for example in loaded.task.examples("test", 6)]
    [batch] = batches_of(prompts, 6, pad=loaded.tokenizer.pad_token_id)
    return batch


def alone(models, mode, batch):
    response = run_request(models, mode, batch, 60)
    return [row.tolist() for row in response.rows], response.work


@pytest.mark.parametrize("gamma", [3, 8])
def test_every_mode_has_the_tokens_and_rounds_that_it_has_alone(models, batch, gamma):
    modes = named_modes(RULES, gamma)
    groups, forwards, responses = together(models, modes), [], {}
    assert [len(group) for group in groups] == [len(modes) - 2, 2]
    for group in groups:
        with models.target.register_forward_pre_hook(lambda module, args: forwards.append(None)):
            responses |= run_together(models, group, batch, 60)
    texts = set()
    for mode in modes:
        tokens, work = alone(models, mode, batch)
        assert [row.tolist() for row in responses[mode.label].rows] == tokens, mode.label
        assert responses[mode.label].work == work, mode.label
        texts |= {(i, tuple(row)) for i, row in enumerate(tokens)}
    assert len(texts) > 2 * len(batch)  # the rules differ, or this would show nothing
    longest = [max(rounds for mode in group for rounds, *_ in responses[mode.label].work) for group in groups]
    assert len(forwards) == sum(longest)


def test_texts_end_at_a_string(models, batch, loaded):
    ending = replace(batch, ending=Ending((". ",), loaded.tokenizer))
    modes = named_modes("lossless,topk:k=3", 5)
    responses = run_together(models, modes, ending, 60)
    for mode in modes:
        tokens, work = alone(models, mode, ending)
        assert [row.tolist() for row in responses[mode.label].rows] == tokens
        assert responses[mode.label].work == work
        assert any(". " in loaded.tokenizer.decode(row) for row in tokens)


def test_modes_that_cannot_share_are_groups_of_their_own(models):
    modes = named_modes("plain,lossless,draft,topk,topk@7,sprinter,lossless:verification=block,dropmatch,topk@auto", 5)
    drawn = named_modes("ears", 5, temperature=0.9)
    stopping = [replace(modes[1], label="stop", settings={"stop_drafting": {"by": "acceptance"}})]
    naive, other = (replace(modes[7], label=f"{x}", settings=x) for x in ({"criterion": "naive"}, {"dropout": 0.3}))
    every = [*modes, replace(naive, label="naive"), *drawn, *stopping, replace(other, label="other")]
    groups = [[mode.label for mode in group] for group in together(models, every)]
    assert groups == [
        ["plain"], ["lossless", "topk"], ["draft"], ["topk@7"], ["sprinter"], ["lossless:verification=block"],
        ["dropmatch", "naive"], ["topk@auto"], ["ears"], ["stop"], ["other"],
    ]  # fmt: skip
    assert len(together(replace(models, lookup=True), [modes[1], modes[3]])) == 2
    static = copy.copy(models.target)
    static.generation_config = copy.copy(static.generation_config)
    static.generation_config.cache_implementation = "static"
    assert len(together(replace(models, target=static), [modes[1], modes[3]])) == 2
