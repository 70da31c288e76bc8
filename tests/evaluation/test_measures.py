"""Measures of texts that have no right answer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.evaluation.evaluate import Evaluation, named_modes
from hf_lossy_assist.evaluation.measures import score_text
from hf_lossy_assist.evaluation.modes import DecodingMode, Models
from hf_lossy_assist.evaluation.requests import batches_of, run_request
from tests.tiny_models import prompt


def test_likelihood_is_that_of_token_by_token_scoring(models):
    put = batches_of(prompt(6).tolist())[0]
    tokens = run_request(models, DecodingMode("x", "topk", {"k": 8}, 5, 1.3), put, 12).rows[0]
    log_p, likeliest = score_text(models.target, put.ids[0], tokens)
    text = torch.cat([put.ids[0], tokens])
    for i, token in enumerate(tokens):
        with torch.no_grad():
            z = models.target(input_ids=text[None, : 6 + i]).logits[0, -1].double().numpy()
        assert log_p[i].item() == pytest.approx(z[token] - np.log(np.exp(z).sum()), abs=1e-4)
        assert bool(likeliest[i]) == (z.argmax() == int(token))


def test_open_texts_are_compared_with_the_target_s_own(pair):
    modes = named_modes("plain,lossless,topk:k=9999", 5)
    models = Models(pair.target, pair.draft)
    evaluation = Evaluation(models, pair.tokenizer, pair.task, modes, "plain", 2, batch_size=2, measure="rouge")
    for answers in evaluation.run():
        assert answers["plain"].score == answers["lossless"].score == 1
        assert 0 <= answers["topk:k=9999"].score < 1
    for i, answers in enumerate(replace(evaluation, measure="likelihood").run()):
        ids = torch.tensor(pair.task.encode(evaluation.examples[i], pair.tokenizer))
        answer = answers["topk:k=9999"]
        tokens = pair.tokenizer(answer.text, return_tensors="pt", add_special_tokens=False)["input_ids"][0]
        if len(tokens) == answer.tokens:  # else the text is tokenised otherwise
            log_p, _ = score_text(pair.target, ids, tokens)
            assert answer.score == pytest.approx(log_p.mean().exp().item(), rel=1e-4)
        assert answer.score < answers["plain"].score <= 1
    with pytest.raises(LossyValueError, match="`measure` has to be one of"):
        replace(evaluation, measure="beauty")
