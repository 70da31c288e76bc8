"""Measures of texts that have no right answer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hf_lossy_assist import LossyValueError
from hf_lossy_assist.evaluation.evaluate import Evaluation, named_modes
from hf_lossy_assist.evaluation.modes import DecodingMode, Models
from hf_lossy_assist.evaluation.quality import Measurable, likelihood
from hf_lossy_assist.evaluation.requests import batches_of, run_request
from tests.tiny_models import prompt


def test_likelihood_is_that_of_token_by_token_scoring(models):
    put = batches_of(prompt(6).tolist())[0]
    tokens = run_request(models, DecodingMode("x", "topk", {"k": 8}, 5, 1.3), put, 12).rows[0]
    text, log_p = torch.cat([put.ids[0], tokens]), []
    for i, token in enumerate(tokens):
        with torch.no_grad():
            z = models.target(input_ids=text[None, : 6 + i]).logits[0, -1].double().numpy()
        log_p.append(z[token] - np.log(np.exp(z).sum()))
    answer = Measurable(None, None, models.target, put.ids[0], tokens, "", "")
    assert likelihood(answer) == pytest.approx(np.exp(np.mean(log_p)), rel=1e-4)


def test_open_texts_are_compared_with_the_target_s_own(pair):
    modes = named_modes("plain,lossless,topk:k=9999", 5)
    models = Models(pair.target, pair.draft)
    evaluation = Evaluation(models, pair.tokenizer, pair.task, modes, "plain", 2, batch_size=2, measure="rouge")
    for answers in evaluation.run():
        assert answers["plain"].score == answers["lossless"].score == 1
        assert 0 <= answers["topk:k=9999"].score < 1
    for answers in replace(evaluation, measure="likelihood").run():
        assert answers["topk:k=9999"].score < answers["plain"].score <= 1
    with pytest.raises(LossyValueError, match="`measure` has to be one of"):
        replace(evaluation, measure="beauty")
