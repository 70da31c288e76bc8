"""Rules that read states or dropped heads: along a text they decide as in a forward over their own draft."""

from __future__ import annotations

import pytest
import torch

from hf_lossy_assist.acceptors import REGISTRY
from hf_lossy_assist.evaluation.advice.replay import decided
from hf_lossy_assist.evaluation.advice.text_logits import processors_of
from hf_lossy_assist.evaluation.modes import Models
from hf_lossy_assist.heads import JudgeConfig, JudgeHead, ModelIdentity
from tests.small_pair import verifier_for
from tests.tiny_models import noisy_copy

PROMPT = [1, 5, 9, 4]


@pytest.fixture(scope="module")
def models(models) -> Models:
    """Models that often differ."""
    return Models(models.target, noisy_copy(models.target, 0.2))


@pytest.fixture(scope="module")
def answer(models) -> list[int]:
    ids = torch.tensor([PROMPT])
    return models.target.generate(ids, do_sample=False, max_new_tokens=24)[0, len(PROMPT) :].tolist()


def states_and_logits(model, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        output = model(torch.tensor([ids]), output_hidden_states=True)
    return output.hidden_states[-1][0], output.logits[0]


def judge_for(models, position: str) -> JudgeHead:
    identities = {"target": ModelIdentity.of(models.target), "draft": ModelIdentity.of(models.draft)}
    config = JudgeConfig(**identities, task="none", positions=position, threshold=0.5)
    weight = torch.randn(config.width, generator=torch.Generator().manual_seed(1)) / config.width**0.5
    return JudgeHead(config, weight, 0.0)


@pytest.mark.parametrize("position", ["previous", "draft"])
def test_a_judge_reads_the_state_of_the_drafted_token(models, answer, position):
    """Against one forward for each position, over the text and the draft's token in the place of the text's."""
    head = judge_for(models, position)
    rule = REGISTRY["judge"](head, threshold=0.5)
    text, start = [*PROMPT, *answer], len(PROMPT)
    processors = processors_of(models.target, PROMPT, do_sample=False)
    found = decided(rule, models.target, models.draft, text, start, processors, False)
    expected, wrong, matches = [], [], []
    for i in range(len(answer)):
        _, q = states_and_logits(models.draft, text[: start + i])
        x = int(q[-1].argmax())
        states, p = states_and_logits(models.target, [*text[: start + i], x])
        match = x == int(p[-2].argmax())
        said = head.probability(states[[-1 if position == "draft" else -2]])
        matches.append(match)
        expected.append(match or bool(said < 0.5))
        wrong.append(expected[-1] and not match)
    assert found["keep"].bool().tolist() == expected
    assert found["others"].bool().tolist() == wrong
    assert 0 < sum(matches) < len(answer)


@pytest.mark.parametrize("position", ["previous", "token"])
def test_a_verifier_reads_the_draft(models, answer, position):
    head = verifier_for(models, position)
    rule = REGISTRY["sprinter"](head, threshold=0.5)
    text, start = [*PROMPT, *answer], len(PROMPT)
    found = decided(rule, models.target, models.draft, text, start, processors_of(models.target, PROMPT), False)
    expected = []
    for i in range(len(answer)):
        _, q = states_and_logits(models.draft, text[: start + i])
        states, _ = states_and_logits(models.draft, [*text[: start + i], int(q[-1].argmax())])
        expected.append(bool(head.probability(states[[-1 if position == "token" else -2]]) > 0.5))
    assert found["keep"].bool().tolist() == expected
    assert 0 < sum(expected) < len(answer)


def test_dropped_heads_without_dropout_keep_what_lossless_keeps(models, answer, monkeypatch):
    rule = REGISTRY["dropmatch"](dropout=0.0, criterion="naive")
    text, start = [*PROMPT, *answer], len(PROMPT)
    monkeypatch.setattr("hf_lossy_assist.evaluation.advice.replay.CHUNK", 7)
    found = decided(rule, models.target, models.draft, text, start, processors_of(models.target, PROMPT), False)
    _, p = states_and_logits(models.target, text)
    _, q = states_and_logits(models.draft, text)
    match = p[start - 1 : -1].argmax(-1) == q[start - 1 : -1].argmax(-1)
    assert found["keep"].bool().tolist() == match.tolist()
    assert not found["others"].any()
    kept = decided(
        REGISTRY["dropmatch"](dropout=0.5), models.target, models.draft, text, start,
        processors_of(models.target, PROMPT), True,
    )  # fmt: skip
    assert kept["keep"].shape == (len(answer),)
