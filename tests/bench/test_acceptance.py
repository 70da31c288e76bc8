"""Acceptance rows, against runs by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from hf_lossy_assist.bench import acceptance, records
from hf_lossy_assist.bench.run_lengths import foretell
from hf_lossy_assist.bench.runs import Setting, pool, respond
from hf_lossy_assist.stats import LossyStats
from tests.acceptors.fixtures import verifier_head as head_for
from tests.models import noisy_copy, prompt, tiny

LENGTH = 16


@pytest.fixture(scope="module")
def models():
    target = tiny()
    target.generation_config.eos_token_id = None
    return target, noisy_copy(target, 0.02)


def rows_of(models, *settings, prompts=3):
    ids = [prompt(6, seed)[0] for seed in range(prompts)]
    return list(acceptance.measure(*models, ids, settings, gamma=4, max_new_tokens=LENGTH))


def test_lossless_greedy_is_the_target_alone(models):
    alone, draft, lossless = rows_of(models, Setting("lossless"))
    assert [row.mode for row in (alone, draft, lossless)] == ["target alone", "draft alone", "lossless"]
    assert (alone.mean_accepted, alone.greedy_prefix, alone.likeliest) == (None, 1.0, 1.0)
    assert (lossless.greedy_prefix, lossless.likeliest, lossless.accepted_lossy) == (1.0, 1.0, 0.0)
    assert lossless.log_likelihood == pytest.approx(alone.log_likelihood)
    assert lossless.tokens == 3 * LENGTH
    assert 0 < lossless.mean_accepted < 4
    assert draft.log_likelihood < alone.log_likelihood
    assert 0 < draft.greedy_prefix < 1


def test_a_rule_that_keeps_everything_says_what_the_draft_says(models):
    setting = Setting("topk", {"k": 64})
    *_, everything = rows_of(models, setting)
    assert everything.acceptance_rate == 1.0
    assert everything.accepted_lossy > 0
    assert everything.likeliest < 1
    ids = prompt(6)[0]
    in_one_round = respond(*models, ids, setting, gamma=LENGTH, max_new_tokens=LENGTH)
    alone = respond(models[1], None, ids, Setting(), max_new_tokens=LENGTH)
    assert in_one_round.tokens[:-1].tolist() == alone.tokens[:-1].tolist()


def test_likelihood_is_that_of_token_by_token_scoring(models):
    target, _ = models
    response = respond(*models, prompt(6)[0], Setting("topk", {"k": 8}, 1.3), max_new_tokens=LENGTH)
    log_p, likeliest = acceptance.judge_text(target, response)
    text = torch.cat([response.prompt, response.tokens])
    for i, token in enumerate(response.tokens):
        with torch.no_grad():
            z = target(input_ids=text[None, : len(response.prompt) + i]).logits[0, -1].double().numpy()
        assert log_p[i].item() == pytest.approx(z[token] - np.log(np.exp(z).sum()), abs=1e-4)
        assert bool(likeliest[i]) == (z.argmax() == int(token))


def test_sampling_is_reproducible_and_differs_from_prompt_to_prompt(models):
    setting = Setting("ears", {"beta": 0.1}, 0.9)
    first, second = ([replace(row, tokens_per_second=0) for row in rows_of(models, setting)] for _ in range(2))
    assert first == second
    state = torch.random.get_rng_state()
    ids = prompt(6)[0]
    one, other = (respond(*models, ids, Setting(temperature=2.0), seed=seed).tokens.tolist() for seed in (0, 1))
    assert one != other
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_default_settings_leave_out_what_could_not_differ():
    greedy = {(s.mode, *s.config.items()) for s in acceptance.settings([None])}
    sampled = {(s.mode, *s.config.items()) for s in acceptance.settings([0.9])}
    assert sampled - greedy == {("ears", ("beta", 0.1))}
    assert ("lossless",) in greedy


@pytest.mark.parametrize(
    ("a", "b", "shared"), [([1, 2, 3], [1, 2, 3], 3), ([1, 9, 3], [1, 2, 3], 1), ([5], [6, 7], 0), ([1, 2], [1], 1)]
)
def test_common_prefix(a, b, shared):
    assert acceptance.common_prefix(torch.tensor(a), torch.tensor(b)) == shared


def test_pooled_rounds_count_alike():
    one = LossyStats(rounds=1, drafted=4, accepted=4, accepted_histogram=(0, 0, 0, 0, 1), accepted_by={"a": 4},
                     seconds={"total": 1.0}, trace=("accepted",) * 4 + ("bonus",))  # fmt: skip
    two = LossyStats(rounds=3, drafted=12, accepted=2, accepted_lossy=1, accepted_histogram=(1, 2), lossless=False,
                     accepted_by={"a": 1, "b": 1}, seconds={"total": 0.5}, trace=("accepted",) * 5)  # fmt: skip
    pooled = pool([one, two])
    assert pooled.mean_accepted == 6 / 4
    assert pooled.acceptance_rate == 6 / 16
    assert pooled.tokens_per_round == 10 / 4
    assert pooled.accepted_histogram == (1, 2, 0, 0, 1)
    assert (pooled.accepted_by, pooled.seconds, pooled.lossless) == ({"a": 5, "b": 1}, {"total": 1.5}, False)


def test_rows_are_written_with_their_origin(models, tmp_path):
    rows = rows_of(models, Setting("lossless"), prompts=1)
    file = tmp_path / "deep" / "rows.jsonl"
    with records.written(file, records.provenance("cpu", gamma=4)) as write:
        for count, row in enumerate(rows, 2):
            write(row)
            assert len(file.read_text().splitlines()) == count, "a row is on disk before the next one is measured"
    with records.written(None, {}) as write:
        write(rows[0])
    origin, *read = (json.loads(line) for line in file.read_text().splitlines())
    assert origin["table"] == "provenance"
    assert {"torch", "transformers", "argv", "date", "threads"} <= set(origin)
    assert (origin["device"], origin["gamma"]) == ("cpu", 4)
    assert [row["mode"] for row in read] == ["target alone", "draft alone", "lossless"]
    assert read[2]["mean_accepted"] == rows[2].mean_accepted


def test_rouge_is_the_f_measure_of_the_longest_common_subsequence():
    # 3 of 4 words in order, of texts of 4 and 6 words.
    assert acceptance.rouge_l([("the cat sat down", "the big cat sat there quietly")]) == pytest.approx(0.6)
    assert acceptance.rouge_l([("a", "a"), ("a", "b")]) == 0.5


@pytest.mark.parametrize("position", ["previous", "token"])
@pytest.mark.parametrize(("bias", "rate"), [(-50.0, 0.0), (50.0, 1.0)])
def test_foretold_runs_of_a_head_that_always_says_the_same(models, position: str, bias: float, rate: float):
    head = head_for(*models, position, bias=bias, scale=0.0)
    setting = Setting("sprinter", {"threshold": 0.5, "max_draft": 8}, head=head)
    responses = [respond(*models, prompt(6, seed)[0], setting, max_new_tokens=LENGTH) for seed in range(3)]
    told = foretell(*models, head, 0.5, responses, max_draft=8)
    assert told.tpr == told.fpr == rate
    assert told.mean_run == pytest.approx(7 * rate)
    assert 0 < told.acceptable < 1


def test_foretold_rates_are_those_of_a_naive_count(models):
    target, draft = models
    head = head_for(target, draft, scale=3.0, seed=1)
    response = respond(*models, prompt(6)[0], Setting(), max_new_tokens=LENGTH)
    told = foretell(target, draft, head, 0.5, [response])
    ids, marks = torch.cat([response.prompt, response.tokens]), []
    for i in range(6, len(ids)):
        states = []
        handle = draft.lm_head.register_forward_pre_hook(lambda _, args: states.append(args[0][0, -1]))  # noqa: B023
        q = draft(input_ids=ids[None, :i]).logits[0, -1].softmax(-1)
        handle.remove()
        p = target(input_ids=ids[None, :i]).logits[0, -1].softmax(-1)
        x = q.argmax()
        marks.append((bool(q[x] / p[x] <= 1.0), bool(torch.sigmoid(states[0] @ head.weight + head.bias) > 0.5)))
    for kind, rate in ((True, told.tpr), (False, told.fpr)):
        passed = [passes for acceptable, passes in marks if acceptable == kind]
        assert rate == pytest.approx(sum(passed) / max(1, len(passed)))


def test_sprinter_rows_show_runs(models):
    head = head_for(*models, bias=1.0, scale=1.0)
    rows = rows_of(models, *acceptance.sprinter_settings(head)[:2])
    assert all(row.mean_run is not None and row.foretold_run is not None for row in rows[2:])
    assert rows[0].mean_run is None
