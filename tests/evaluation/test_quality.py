"""Right answers, and how well their share is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from hf_lossy_assist.evaluation.comparison import texts_of
from hf_lossy_assist.evaluation.modes import DecodingMode, Models
from hf_lossy_assist.evaluation.quality import evaluate, judge, qualities
from hf_lossy_assist.evaluation.requests import batches_of, run_request


def test_intervals_and_paired_differences():
    rng = np.random.default_rng(0)
    reference = (rng.random(400) < 0.9).tolist()
    # Of the right ones 5 % go wrong; a paired interval sees that, two separate ones would not.
    other = [right and rng.random() > 0.05 for right in reference]
    alone, lossy = qualities({"lossless": reference, "lossy": other}, "lossless")
    n, k = 400, sum(reference)
    z = stats.norm.ppf(0.975)
    centre, half = (k + z**2 / 2) / (n + z**2), z * np.sqrt(k * (n - k) / n + z**2 / 4) / (n + z**2)
    assert (alone.low, alone.high) == (pytest.approx(centre - half), pytest.approx(centre + half))
    assert (alone.difference, alone.margin, alone.reference) == (None, None, None)
    changed = sum(a != b for a, b in zip(reference, other, strict=True))
    assert lossy.difference == pytest.approx(-changed / n)
    assert lossy.margin == pytest.approx(1.96 * np.sqrt(changed / n * (1 - changed / n) / (n - 1)))
    assert lossy.difference + lossy.margin < 0 < lossy.high - alone.low
    assert [q.difference for q in qualities({"a": [True], "b": [False]}, "not there")] == [None, None]


def test_responses_are_judged_by_the_task(pair):
    models, examples = Models(pair.target, pair.draft), pair.task.examples("test", 6)
    batches = batches_of([pair.task.encode(example, pair.tokenizer) for example in examples], 4)
    said = texts_of(run_request(models, DecodingMode(), batch, pair.task.max_new_tokens) for batch in batches)
    assert judge(pair.tokenizer, pair.task, examples, said) == [False, True] * 3


def test_right_wrong_and_missing_answers_are_counted(pair, monkeypatch):
    """Of six answers of the target three are right, and one of the others is taken to be none at all."""
    wrong = pair.task.examples("test", 6)[0].answer
    monkeypatch.setattr(pair.task, "extract_answer", lambda text: None if text.startswith(wrong) else text)
    done = []
    result = evaluate(pair.target, pair.tokenizer, pair.task, 6, batch_size=4, on_batch=done.append)
    assert (result.problems, result.correct, result.unanswered) == (6, 3, 1)
    assert result.accuracy == 0.5
    assert done == [4, 6]
    assert evaluate(pair.target, pair.tokenizer, pair.task, 6, batch_size=1) == result
