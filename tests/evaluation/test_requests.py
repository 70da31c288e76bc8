"""Batches, and what comes back of them."""

from __future__ import annotations

from dataclasses import replace

import torch

from hf_lossy_assist.evaluation.modes import DecodingMode
from hf_lossy_assist.evaluation.requests import Ending, batches_of, run_request, until_end
from hf_lossy_assist.integrations.vllm.engines import request_of
from tests.tiny_models import prompt


def test_prompts_are_padded_together():
    (together,) = batches_of([[1, 2, 3], [1, 4]], 2, pad=9)
    assert together.ids.tolist() == [[1, 2, 3], [9, 1, 4]]
    assert together.mask.tolist() == [[1, 1, 1], [0, 1, 1]]
    assert [(len(b), b.seed) for b in batches_of([[1]] * 5, 2, seed=10)] == [(2, 10), (2, 12), (1, 14)]


def test_a_batch_of_the_target_alone(models):
    prompts = [prompt(6, seed)[0].tolist() for seed in range(3)]
    (batch,) = batches_of(prompts, 3)
    together = run_request(models, DecodingMode(), batch, 12)
    apart = [run_request(models, DecodingMode(), one, 12).rows[0].tolist() for one in batches_of(prompts)]
    assert [row.tolist() for row in together.rows] == apart
    assert together.tokens == 36


def test_responses_end_with_the_first_eos(models):
    (batch,) = batches_of([prompt(6)[0].tolist()])
    said = run_request(models, DecodingMode(), batch, 12).rows[0].tolist()
    config = models.target.generation_config
    config.eos_token_id = [said[5], 63]
    try:
        cut = until_end(torch.tensor([*said, said[5], 0]), models.target).tolist()
        run = run_request(models, DecodingMode(), batch, 12).rows[0].tolist()
    finally:
        config.eos_token_id = None
    assert cut == run == said[: said.index(said[5]) + 1]
    assert until_end(torch.tensor(said), models.target).tolist() == said


def test_responses_end_with_a_string(pair):
    prompts = [pair.task.encode(example, pair.tokenizer) for example in pair.task.examples("test", 3)]
    models = pair
    whole = [run_request(models, DecodingMode(), one, 60).rows[0] for one in batches_of(prompts)]
    string = pair.tokenizer.decode(whole[0][4:6])
    ending = Ending((string, "never said"), pair.tokenizer)
    wanted = [
        next((row[:n] for n in range(len(row)) if string in pair.tokenizer.decode(row[:n])), row).tolist()
        for row in whole
    ]
    assert min(map(len, wanted)) <= 6 < max(map(len, wanted)), "rows end apart"
    (together,) = batches_of(prompts, 3, pad=pair.tokenizer.pad_token_id)
    for mode in DecodingMode(), DecodingMode("lossless", "lossless", gamma=5):
        response = run_request(models, mode, replace(together, ending=ending), 60)
        assert [row.tolist() for row in response.rows] == wanted
    alone = request_of(models, DecodingMode(), replace(together, ending=ending), 60)["parameters"]
    assert (alone["stop"], alone["include_stop_str_in_output"]) == ([string, "never said"], True)
