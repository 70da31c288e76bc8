"""Tiny models for measurements, and who was asked."""

import pytest

from hf_lossy_assist.evaluation import evaluation
from tests.small_pair import models, pair, tokenizer  # noqa: F401


@pytest.fixture
def requests(monkeypatch):
    """Labels of the modes that answer, in order, and how many prompts."""
    asked, run = [], evaluation.run_request

    def noted(of, mode, batch, length):
        if length > evaluation._WARM_UP_TOKENS:
            asked.append((mode.label, len(batch)))
        return run(of, mode, batch, length)

    monkeypatch.setattr(evaluation, "run_request", noted)
    return asked
